#!/usr/bin/env python3
"""Contexts that fill: test_compaction.py HEARTH_SCRIPTED [NAME-PART]...

The whole program with a scripted engine, and beside it the real one with the bundled model. Helpers and
output are those of cli_support.py.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import cli_support
from cli_support import GREEDY, Scratch, check, needs_sandbox
from test_resume import context_ids

SCRIPTED = cli_support.HEARTH
HEARTH = str(pathlib.Path(SCRIPTED).parent.parent / "runtime" / "hearth")
SLOW = cli_support.is_slow_build()
LINES = "".join(f"line {i}: some words that fill a file up\n" for i in range(60))  # about 800 tokens
MAX = 4096
TURN_END = MAX - MAX // 8 - 256  # agent_history_turn_end


def read(path, **more):
    return dict({"thinking": f"I need {path}.", "text": "I look.",
                 "calls": [{"name": "read", "arguments": {"path": path}}]}, **more)


def reads(count):
    return [read(f"file{i}.txt") for i in range(count)]


SUMMARY = {"fork": True, "text": "The files were read."}


class World(Scratch):
    def __enter__(self):
        super().__enter__()
        for i in range(9):
            (self.work / f"file{i}.txt").write_text(f"file {i}\n{LINES}")
        self.contexts = []
        return self

    def start(self, turns, *arguments, environment=None, context_max=MAX, **script):
        path, log = self.path / "script.json", self.path / "log"
        path.write_text(json.dumps(dict(script, turns=turns, context_max=context_max)))
        log.write_text("")
        where = [] if "--resume" in arguments else ["-C", str(self.work)]
        return subprocess.Popen(
            [SCRIPTED, "run", *arguments, *where, "--state", self.state, "--json"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.work,
            env=dict(os.environ, HEARTH_SCRIPT=str(path), HEARTH_SCRIPT_LOG=str(log),
                     **(environment or {})))

    def end(self, process, status, text=b""):
        out, err = process.communicate(text, timeout=120)
        assert process.returncode == status, (process.returncode, out[-2000:], err[-2000:])
        self.contexts = [(int(line.split(":")[0]), [int(word) for word in line.split(":")[1].split()])
                         for line in (self.path / "log").read_text().splitlines()]
        return [cli_support.event_of(line) for line in out[:out.rfind(b"\n") + 1].splitlines()]

    def play(self, turns, *arguments, status=0, **more):
        return self.end(self.start(turns, *arguments, **more), status)

    def tree(self):
        done = subprocess.run(
            [SCRIPTED, "sessions", "show", "last", "--json", "--tokens", "--state", self.state],
            stdout=subprocess.PIPE, check=True, cwd=self.work,
            env=dict(os.environ, HEARTH_SCRIPT=str(self.path / "script.json")))
        return json.loads(done.stdout)


class Person:
    """A run that a person drives."""

    def __init__(self, world, turns, *arguments):
        self.process = world.start(turns, "--interactive", *arguments)
        self.events = []

    def until(self, name):
        for line in self.process.stdout:
            self.events.append(cli_support.event_of(line))
            if self.events[-1]["event"] == name:
                return
        raise AssertionError((name, self.events[-3:], self.process.stderr.read()[-2000:]))

    def send(self, **fields):
        self.process.stdin.write(json.dumps(fields).encode() + b"\n")
        self.process.stdin.flush()


def named(events, name):
    return [event for event in events if event["event"] == name]


def check_contexts(world):
    """What the engine was given is what the record holds, and each context goes on from the one before
    it or begins with a compaction."""
    turns = world.tree()["agents"][0]["turns"]
    known, at = [[]], []
    for turn in turns:
        for run in turn["token_runs"]:
            at = at[:run["position"]] + run.get("ids", [])
            known.append(at)
    for sequence, ids in world.contexts:
        if sequence == 1 or ids in known:
            assert ids in known, (sequence, len(ids))
    last = [ids for _, ids in world.contexts if ids in known][-1]
    assert context_ids(world.tree())[:len(last)] == last
    world.check_database()


def compactions(world):
    return [turn for turn in world.tree()["agents"][0]["turns"] if "compaction" in turn]


# ---- what happens --------------------------------------------------------------------------------


def test_old_outputs_go_first_without_a_summary():
    needs_sandbox()
    with World() as world:
        done = world.play(reads(4) + [{"text": "Done."}], "Read.", "--keep-turns", "1")
        event, = named(done, "compacted")
        assert "summary" not in event and event["outputs_removed"] == 3, event
        assert event["tokens_after"] * 100 < event["tokens_before"] * 60, event
        turn, = compactions(world)
        texts = [message["text"] for message in turn["messages"] if message["role"] == "tool"]
        assert all(text.startswith("[output of read removed") for text in texts[:3]), texts
        assert texts[3].startswith("file 3") and len(texts) == 4
        check_contexts(world)


def test_a_summary_by_a_fork_takes_the_place_of_the_middle():
    needs_sandbox()
    with World() as world:
        done = world.play(reads(5) + [{"text": "Done."}, SUMMARY], "Read.")
        event = named(done, "compacted")[0]
        before = [usage for usage in named(done, "usage") if usage["turn"] == event["turn"] - 1][0]
        held = before["prompt"] + before["sampled"]
        assert event["summary"] == SUMMARY["text"], event
        assert event["summary_reused"] == held, (event, held)
        assert 50 < event["summary_evaluated"] < 200, event
        turn = compactions(world)[0]
        assert turn["index"] + 1 == event["turn"], (turn["index"], event)  # live numbers are the record's
        roles = [message["role"] for message in turn["messages"]]
        assert roles[:3] == ["system", "user", "user"] and "assistant" in roles, roles
        assert turn["messages"][1]["text"] == "Read."
        summary = turn["messages"][2]["text"]
        assert SUMMARY["text"] in summary and "\n- file0.txt\n" in summary, summary
        assert turn["compaction"]["tokens_after"] == turn["cache"]["prompt_tokens"]
        after = [usage for usage in named(done, "usage") if usage["turn"] == event["turn"] + 1][0]
        assert after["evaluated"] == 0 and after["reused"] == event["tokens_after"], after
        shown = subprocess.run(
            [SCRIPTED, "sessions", "show", "last", "--state", world.state], stdout=subprocess.PIPE, check=True,
            cwd=world.work, env=dict(os.environ, HEARTH_SCRIPT=str(world.path / "script.json"))).stdout.decode()
        assert f"the context of {event['tokens_before']} tokens was made shorter" in shown, shown
        # The fork's context is the old one, and a request of a few tokens behind it.
        forks = [ids for sequence, ids in world.contexts if sequence == 2]
        main = [ids for sequence, ids in world.contexts if sequence == 1][-1]
        assert len(forks) == 1 and forks[0][:len(main)] == main
        # The record has it too, beside the agent's own turns.
        agent, child = world.tree()["agents"]
        assert child["name"] == "summaries" and child["parent"] == agent["id"], child
        written = child["turns"][0]
        asked, answer = written["token_runs"]
        assert forks[0][asked["position"]:] == asked["ids"] and answer["position"] == len(forks[0])
        assert written["messages"][0]["text"] == SUMMARY["text"]
        assert len(answer["log_probabilities"]) == answer["count"] == written["output_tokens"] > 3
        assert written["number"] < turn["number"] and written["cache"]["reused_tokens"] == held
        assert written["sampler"]["effort"] == 0 and written["stop_reason"] == "end", written
        assert named(done, "finished")[0]["stop"] == "answer"
        check_contexts(world)


def test_a_prompt_that_does_not_fit_is_cut_to_fit():
    needs_sandbox()
    with World() as world:
        (world.work / "file1.txt").write_text("file 1\n" + LINES * 4)
        done = world.play([read("file0.txt"), read("file1.txt"), {"text": "Done."}, SUMMARY], "Read.")
        event, = named(done, "compacted")
        assert event["tokens_before"] > MAX > 2 * event["tokens_after"], event
        tool = compactions(world)[0]["messages"][-1]["text"]
        assert tool.startswith("file 1") and "[cut to save room" in tool[-80:], tool[-100:]
        assert named(done, "finished")[0]["stop"] == "answer"
        # Nothing of the prompt that did not fit is in the record.
        assert all(run["position"] + run["count"] <= MAX
                   for turn in world.tree()["agents"][0]["turns"] for run in turn["token_runs"])


def test_a_context_that_cannot_shrink_stops_with_the_numbers():
    needs_sandbox()
    with World() as world:
        task = "Read. " * 1500
        done = world.play([read("file0.txt"), SUMMARY], task, status=1)
        end, = named(done, "finished")
        assert end["stop"] == "context", end
        assert "cannot be made smaller than" in end["detail"] and "4096 tokens" in end["detail"], end
        assert not named(done, "compacted")
        check_contexts(world)


def test_a_new_context_is_never_more_than_60_percent_of_the_old_one():
    """What is promised of a plan is about; what was built is counted. With tasks of these sizes, which always
    stay, the gentlest plans promise less than they build."""
    needs_sandbox()
    ends = []
    for words in (350, 475, 600, 725, 850):
        with World() as world:
            process = world.start([*reads(3), {"text": "Done."}, SUMMARY], "Read. " * words)
            out, error = process.communicate(timeout=120)
            events = [cli_support.event_of(line) for line in out.splitlines()]
            end, = named(events, "finished")
            for event in named(events, "compacted"):
                assert event["tokens_after"] * 100 < event["tokens_before"] * 60, (words, event)
            ends.append((end["stop"], len(named(events, "compacted"))))
            assert end["stop"] == "answer" or "cannot be made smaller than" in end["detail"], (end, error)
    assert ends[0] == ("answer", 1) and any(stop == "context" for stop, _ in ends), ends


def test_a_finished_turn_is_not_gone_on_with():
    needs_sandbox()
    with World() as world:
        done = world.play([read("file0.txt"), {"text": "word " * 1930}, SUMMARY], "Read.",
                          "--max-turn-tokens", "100000")
        assert named(done, "finished")[0]["stop"] == "answer", named(done, "finished")
        assert named(done, "usage")[-1]["context"] > 0.8 * MAX
        assert not named(done, "compacted")


def test_switched_off_it_ends_with_a_full_context():
    needs_sandbox()
    with World() as world:
        done = world.play(reads(8), "Read.", "--compact-at", "0", status=1)
        assert named(done, "finished")[0]["stop"] == "context"


def test_a_model_that_only_fills_its_context_is_stopped():
    needs_sandbox()
    with World() as world:
        endless = {"thinking": "on and on", "text": "", "repeat": True}
        done = world.play([read("file0.txt"), endless, endless, SUMMARY], "Read.",
                          "--max-thinking", "off", "--max-turn-tokens", "100000", status=1)
        assert len(named(done, "compacted")) == 1, named(done, "compacted")
        assert named(done, "finished")[0]["stop"] == "context", named(done, "finished")


def test_the_person_asks_and_goes_on():
    needs_sandbox()
    with World() as world:
        turns = [read("file0.txt"), {"text": "It is read."}, {"text": "And so on."}, SUMMARY]
        person = Person(world, turns, "Read.")
        person.until("idle")
        person.send(type="command", command="compact", text="Keep the names.")
        person.until("compacted")
        person.until("idle")
        person.send(type="message", text="Go on.")
        person.until("idle")
        world.end(person.process, 0)
        assert named(person.events, "compacted")[0]["summary"] == SUMMARY["text"]
        messages = [message["text"] for turn in world.tree()["agents"][0]["turns"][-2:]
                    for message in turn["messages"]]
        assert messages[-3:] == ["It is read.", "Go on.", "And so on."], messages
        check_contexts(world)
        done = world.play([read("file1.txt"), read("file2.txt"), read("file3.txt"), {"text": "Again."}, SUMMARY],
                          "--resume", "last", "Once more.")
        assert named(done, "finished")[0]["stop"] == "answer" and named(done, "compacted")
        # The last message of the person stays word for word, also that of the run before.
        texts = [message["text"] for message in compactions(world)[-1]["messages"]]
        assert "Once more." in texts and texts[1] == "Read.", texts
        check_contexts(world)


def test_an_interrupt_behind_a_compaction_leaves_a_context_to_go_on_from():
    """The new context ends with the header of a turn that was never written."""
    needs_sandbox()
    for slow in ({"wait_ms": 20000}, {"delay_us": 100000}):
        with World() as world:
            turns = reads(4) + [dict({"thinking": "so", "text": "so on and on"}, **slow),
                                {"text": "Well."}, {"text": "Good."}, SUMMARY]
            person = Person(world, turns, "Read.")
            person.until("compacted")
            person.until("turn")
            time.sleep(0.3)
            person.send(type="interrupt")
            person.until("idle")
            person.send(type="message", text="Go on.")
            person.until("idle")
            person.send(type="command", command="compact")
            person.until("compacted")
            person.until("idle")
            person.send(type="message", text="And on.")
            person.until("idle")
            world.end(person.process, 0)
            texts = [message["text"] for turn in world.tree()["agents"][0]["turns"]
                     for message in turn["messages"]]
            assert texts[-4:] == ["Go on.", "Well.", "And on.", "Good."] or (
                texts[-2:] == ["And on.", "Good."] and "Well." in texts), texts[-5:]
            check_contexts(world)


def test_a_compaction_with_calls_that_never_ran_answers_them():
    needs_sandbox()
    with World() as world:
        calls = [{"name": "shell", "arguments": {"command": command}} for command in ("sleep 60", "true")]
        person = Person(world, reads(2) + [{"text": "I wait.", "calls": calls}, {"text": "Good."}, SUMMARY],
                        "Wait.")
        while not person.events or "sleep" not in str(person.events[-1].get("arguments")):
            person.until("tool_call")
        time.sleep(0.3)
        person.send(type="interrupt")
        person.until("idle")
        person.send(type="command", command="compact")
        person.until("compacted")
        person.until("idle")
        person.send(type="message", text="Go on.")
        person.until("idle")
        world.end(person.process, 0)
        turn, = compactions(world)
        tail = [(message["role"], message["text"]) for message in turn["messages"]][-3:]
        assert [role for role, _ in tail] == ["assistant", "tool", "tool"], tail
        assert tail[2][1].startswith("not run"), tail
        check_contexts(world)


def test_a_turn_that_a_kill_left_unwritten_is_closed_for_a_message():
    needs_sandbox()
    with World() as world:
        process = world.start([{"text": "Never."}], "Read.", environment={"HEARTH_SCRIPT_KILL": "2"})
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        person = Person(world, [{"text": "Well."}], "--resume", "last")
        person.until("idle")
        person.send(type="message", text="Go on.")
        person.until("idle")
        world.end(person.process, 0)
        texts = [message["text"] for turn in world.tree()["agents"][0]["turns"]
                 for message in turn["messages"]]
        assert texts[1:] == ["Read.", "Go on.", "Well."], texts
        check_contexts(world)


# ---- stops ---------------------------------------------------------------------------------------


def wait_for_fork(world):
    """The summary is being written: the engine was given the fork's context."""
    deadline = time.monotonic() + 60
    while not any(line.startswith("2:") for line in (world.path / "log").read_text().splitlines()):
        assert time.monotonic() < deadline, "nothing was forked"
        time.sleep(0.02)
    time.sleep(0.1)


def test_an_interrupted_summary_is_written_when_the_work_goes_on():
    needs_sandbox()
    with World() as world:
        person = Person(world, reads(4) + [dict(SUMMARY, wait_ms=20000), SUMMARY, {"text": "Done."}], "Read.")
        wait_for_fork(world)
        person.send(type="interrupt")
        person.until("idle")
        assert not named(person.events, "compacted")
        person.send(type="message", text="Go on.")
        person.until("compacted")
        person.until("idle")
        world.end(person.process, 0)
        turn, = compactions(world)
        assert [message["text"] for message in turn["messages"]][-1] == "Go on."
        check_contexts(world)


def test_an_interrupt_leaves_the_old_context():
    needs_sandbox()
    for wait, slow in (("summary", dict(SUMMARY, wait_ms=20000)), ("tokens", dict(SUMMARY, delay_us=500000))):
        with World() as world:
            process = world.start(reads(4) + [slow], "Read.")
            wait_for_fork(world)
            process.send_signal(signal.SIGINT)
            done = world.end(process, 130)
            assert named(done, "finished")[0]["stop"] == "interrupt" and not compactions(world), wait
            held = context_ids(world.tree())
            done = world.play([{"text": "Done."}, SUMMARY], "--resume", "last")
            event, = named(done, "compacted")
            fork, = [ids for sequence, ids in world.contexts if sequence == 2]
            assert fork[:len(held)] == held and len(fork) < len(held) + 200
            assert named(done, "finished")[0]["stop"] == "answer"
            check_contexts(world)


def test_a_deadline_in_a_summary_ends_the_run():
    needs_sandbox()
    with World() as world:
        started = time.monotonic()
        done = world.play(reads(4) + [dict(SUMMARY, wait_ms=60000)], "Read.", "--max-time", "4s", status=4)
        assert named(done, "finished")[0]["stop"] == "time", named(done, "finished")
        assert time.monotonic() - started < 30


def test_a_failed_summary_ends_the_run_as_a_failed_turn_does():
    needs_sandbox()
    with World() as world:
        done = world.play(reads(4) + [dict(SUMMARY, fail="the device is gone")], "Read.", status=6)
        end, = named(done, "finished")
        assert (end["stop"], end["detail"]) == ("engine", "the device is gone"), end
        done = world.play([{"text": "Done."}, SUMMARY], "--resume", "last")
        assert len(named(done, "compacted")) == 1


def contexts_of(tree):
    """Every context that the record passed through, the empty one included."""
    known, at = [[]], []
    for turn in tree["agents"][0]["turns"] if tree["agents"] else []:
        for run in turn["token_runs"]:
            at = at[:run["position"]] + run.get("ids", [])
            known.append(at)
    return known


def test_a_kill_at_any_moment_leaves_one_context_whole():
    """Two compactions, killed right before and behind each step of the record: a resume finds the
    context before a compaction or the one behind it."""
    needs_sandbox()
    turns = reads(7) + [{"text": "Done."}, SUMMARY, dict(SUMMARY, text="All of them were read.")]
    with World() as world:
        world.play(turns, "Read.")
        whole = contexts_of(world.tree())
        count = len(compactions(world))
    assert count >= 2
    moment, seen = 0, set()
    while True:
        moment += 1 if not SLOW else 3
        with World() as world:
            process = world.start(turns, "Read.", environment={"HEARTH_SCRIPT_KILL": str(moment)})
            process.communicate(timeout=120)
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, process.returncode
            if moment < 2:
                continue  # there is no turn yet
            tree = world.tree()
            held = context_ids(tree)
            assert held in whole, (moment, len(held))
            seen.add(sum("compaction" in turn for turn in tree["agents"][0]["turns"]))
            done = world.play([{"text": "Done."}, SUMMARY], "--resume", "last")
            if not done:
                assert held == whole[-1], moment  # the answer is there: nothing is left to do
                continue
            resumed = named(done, "resumed") + named(done, "compacted")
            assert resumed and named(done, "finished")[0]["stop"] == "answer", (moment, done[-3:])
            # What the engine was given first: what was held, and what is new behind it, or at once the
            # context of a compaction without a summary.
            first = world.contexts[0][1]
            begins = [turn["token_runs"][0]["ids"] for turn in compactions(world)]
            assert first[:len(held)] == held or first in begins, (moment, len(first), len(held))
            check_contexts(world)
    assert moment > 40 and seen == set(range(count + 1)), (moment, seen)


# ---- the real engine -----------------------------------------------------------------------------


def test_the_bundled_model_goes_on_in_a_smaller_context():
    needs_sandbox()
    if SLOW:
        raise cli_support.Skipped("takes a minute with sanitizers")
    with Scratch() as scratch:
        task = scratch.demo()
        noise = "".join(f'print("case {i}: fine")\n' for i in range(60))
        tests = scratch.work / "test_all.py"
        tests.write_text(noise + tests.read_text())
        done = subprocess.run(
            [HEARTH, "run", task["prompt"], "-C", str(scratch.work), "--state", scratch.state, "--json",
             *GREEDY, "--context", "2048"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
        events = [cli_support.event_of(line) for line in done.stdout.splitlines()]
        event = named(events, "compacted")[0]
        turn = event["turn"]
        before = [usage for usage in named(events, "usage") if usage["turn"] == turn - 1][0]
        held = before["prompt"] + before["sampled"]
        # The last token that was sampled had not been evaluated yet.
        assert event["summary_reused"] == held - 1, (event, held)
        assert event["summary_prompt"] == event["summary_reused"] + event["summary_evaluated"]
        assert event["summary_evaluated"] < 160, event
        assert event["tokens_after"] == event["reused"] + event["evaluated"], event
        assert event["reused"] > 500, event  # system prompt, tools and task are found in the cache
        assert event["tokens_after"] * 100 < event["tokens_before"] * 60, event
        after = [usage for usage in named(events, "usage") if usage["turn"] == turn + 1][0]
        assert after["reused"] == event["tokens_after"] and after["evaluated"] == 0, after
        assert named(events, "finished")[0]["turns"] > turn, named(events, "finished")
        assert_sampled_again(scratch)
        scratch.check_database()
        check(cli_support.hearth("sessions", "show", "last", "--state", scratch.state,
                              environment={"HEARTH_SCRIPT": str(write_empty(scratch))}), 0)


def assert_sampled_again(scratch):
    """Every turn of the record and every summary comes to the same tokens, from the record alone."""
    done = subprocess.run([pathlib.Path(SCRIPTED).parent / "resample", cli_support.MINI / "model", scratch.state],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=600)
    assert done.returncode == 0 and b"summaries: " in done.stdout, (done.stdout, done.stderr)


def test_a_summary_that_was_drawn_is_drawn_again():
    needs_sandbox()
    if SLOW:
        raise cli_support.Skipped("takes a minute with sanitizers")
    with Scratch() as scratch:
        task = scratch.demo()
        noise = "".join(f'print("case {i}: fine")\n' for i in range(60))
        tests = scratch.work / "test_all.py"
        tests.write_text(noise + tests.read_text())
        done = subprocess.run(
            [HEARTH, "run", task["prompt"], "-C", str(scratch.work), "--state", scratch.state, "--json",
             "--temperature", "0.7", "--top-p", "0.9", "--seed", "11", "--context", "2048", "--max-turns", "12"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
        events = [cli_support.event_of(line) for line in done.stdout.splitlines()]
        assert named(events, "compacted"), events[-1]
        assert_sampled_again(scratch)


def write_empty(scratch):
    path = scratch.path / "empty.json"
    path.write_text('{"turns": []}')
    return path


def test_the_bundled_model_stops_where_nothing_can_be_left_out():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        done = subprocess.run(
            [HEARTH, "run", task["prompt"], "-C", str(scratch.work), "--state", scratch.state, "--json",
             *GREEDY, "--context", "1024"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
        assert done.returncode == 1, (done.returncode, done.stdout[-500:], done.stderr)
        end = json.loads(done.stdout.splitlines()[-1])
        assert end["stop"] == "context" and "1024 tokens" in end["detail"], end


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
