#!/usr/bin/env python3
"""Commands of a person on record and workspace: test_commands.py HEARTH_SCRIPTED [NAME-PART]...

diff, undo, rewind, fork, sessions and budget, while the program runs with a scripted engine. Helpers are
those of test_interactive.py.
"""
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

import cli_support
from test_interactive import PROGRAM, Session, call, configured, say


class Branching(Session):
    """A session whose contexts need not begin with the one before."""

    def __init__(self, folder, state=None):
        os.makedirs(folder, exist_ok=True)
        super().__init__(folder)
        self.state = state or self.state

    def hearth_config(self):
        done = subprocess.run([PROGRAM, "config", "sessions.snapshots_max"], capture_output=True, text=True,
                              check=True, env=dict(os.environ, HEARTH_SCRIPT=str(self.folder / "script.json")))
        return done.stdout

    def check_prefixes(self):
        pass

    def live_ids(self, session="last"):
        ids = []
        for turn in self.tree_of(session)["agents"][0]["turns"]:
            if not turn.get("is_rewound"):
                for run in turn["token_runs"]:
                    ids[run["position"]:] = run.get("ids", [])
        return ids

    def tree_of(self, session):
        return json.loads(self.hearth("sessions", "show", session, "--json", "--tokens"))


@contextlib.contextmanager
def session():
    with tempfile.TemporaryDirectory(prefix="hearth-commands-") as folder:
        yield Branching(folder)


def write(name, content):
    return {"thinking": "hm", "text": "",
            "calls": [{"name": "write", "arguments": {"path": name, "content": content}}]}


def begin(run, message):
    run.message(message)
    return run.wait("idle", stop="answer")


def test_diff_shows_what_changed_so_far():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([write("a", "1\n"), say("done"), write("b", "2\n"), say("done")]) as run:
            run.wait("idle")
            run.send("command", command="diff")
            assert "nothing was done" in run.wait("note")["text"]
            begin(run, "one")
            run.send("command", command="diff")
            changes = run.wait("changes")
            assert [file["path"] for file in changes["files"]] == ["a"], changes
            assert "+1" in changes["patch"]
            begin(run, "two")
            run.send("command", command="diff")
            assert [file["path"] for file in run.wait("changes")["files"]] == ["a", "b"]
            run.end()


def test_undo_takes_back_files_and_tells_the_model():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([write("a", "1\n"), write("a", "2\n"), say("done"), say("I see")]) as run:
            run.wait("idle")
            begin(run, "one")
            run.send("command", command="undo")
            assert "1 file put back" in run.wait("note")["text"]
            assert (one.work / "a").read_text() == "1\n"
            run.send("command", command="undo")
            run.wait("note")
            assert not (one.work / "a").exists()
            run.send("command", command="undo")
            assert "all are undone" in run.wait("warning")["text"]
            begin(run, "two")
            run.end()
        users = [text for role, text in one.messages() if role == "user"]
        assert any("took back" in text for text in users), users


def test_rewind_goes_on_from_an_earlier_turn():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [write("a", "1\n"), say("first answer"), write("b", "2\n"), say("second answer"),
                 say("other answer"), say("last answer")]
        with one.run(turns) as run:
            run.wait("idle")
            begin(run, "one")
            begin(run, "two")
            assert (one.work / "b").exists()
            run.send("command", command="rewind", text="x")
            run.wait("note")
            run.send("command", command="rewind", text="2")
            run.message("three")  # while it goes back: it is given afterwards
            assert "back behind turn 2" in run.wait("note")["text"]
            run.wait("idle", stop="answer")
            assert (one.work / "a").exists() and not (one.work / "b").exists()
            begin(run, "four")
            run.end()
        tree = one.tree_of("last")
        live = [turn for turn in tree["agents"][0]["turns"] if not turn.get("is_rewound")]
        texts = [message["text"] for turn in live for message in turn["messages"]
                 if message["role"] in ("user", "assistant") and message["text"]]
        assert texts == ["one", "first answer", "three", "other answer", "four", "last answer"], texts
        assert one.contexts[-1] == one.live_ids()[:len(one.contexts[-1])]
        # What the model saw after the rewind begins with what it saw before, up to there.
        kept = one.contexts[1]
        assert one.contexts[-2][:len(kept)] == kept
        with one.run([say("resumed")], "--resume", "last") as run:
            run.wait("idle")
            begin(run, "five")
            run.end()
        assert one.contexts[-1][:len(one.contexts[-2])] == one.contexts[-2]


def test_undo_after_a_rewind_takes_back_what_is_left():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [write("a", "1\n"), say("first"), write("b", "2\n"), say("second"), say("third")]
        with one.run(turns) as run:
            run.wait("idle")
            begin(run, "one")
            begin(run, "two")
            run.send("command", command="undo")  # of b
            run.wait("note")
            run.send("command", command="rewind", text="2")  # which has nothing left to put back
            assert "0 files put back" in run.wait("note")["text"]
            assert (one.work / "a").exists() and not (one.work / "b").exists()
            run.send("command", command="undo")  # of a, which the first one did not take back
            assert "1 file put back" in run.wait("note")["text"]
            assert not (one.work / "a").exists()
            run.end()


def test_a_fork_begins_where_the_session_stands():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([write("a", "1\n"), say("first answer"), say("second answer")]) as run:
            run.wait("idle")
            begin(run, "one" + 40 * " \u4f60")
            run.send("command", command="fork")
            fork = run.wait("note")["text"].split()[1]
            begin(run, "two")
            run.send("command", command="sessions")
            rows = [run.wait("note")["text"], run.wait("note")["text"]]
            assert fork[:18] in rows[0] + rows[1] and max(map(len, rows)) < 78, rows
            assert one.tree_of(fork[:18])["id"] == fork
            run.end()
        with one.run([say("forked answer")], "--resume", fork) as run:
            run.wait("idle")
            begin(run, "other")
            run.end()
        texts = [message["text"] for turn in one.tree_of(fork)["agents"][0]["turns"]
                 for message in turn["messages"] if message["role"] == "user"]
        assert texts == ["one" + 40 * " \u4f60", "other"], texts


def changed(changes):
    return [file["path"] for file in changes["files"]]


def end_changes(run):
    """Ends the run; (what it changed, its session)."""
    finished = run.end()
    return changed(next(event for event in reversed(run.events) if event["event"] == "changes")), finished["session"]


def test_what_was_taken_back_is_no_change_of_the_session():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([write("a", "1\n"), say("first"), write("b", "2\n"), say("second")]) as run:
            run.wait("idle")
            begin(run, "one")
            begin(run, "two")
            run.send("command", command="undo")  # of b
            run.wait("note")
            assert end_changes(run)[0] == ["a"]
        assert plain(one, "sessions", "diff", "last", "--stat")[1].split()[0] == "a"
        assert plain(one, "sessions", "undo", "last")[0] == 0  # of a
        assert plain(one, "sessions", "diff", "last")[1].strip() == ""
        with one.run([write("c", "3\n"), say("third")], "--resume", "last") as run:
            run.wait("idle")
            begin(run, "three")
            run.send("command", command="rewind", text="4")
            run.wait("note")
            assert end_changes(run)[0] == []
        calls = [one_call for turn in one.tree_of("last")["agents"][0]["turns"] for one_call in turn["calls"]]
        assert calls[1]["commit_before"] == calls[0]["commit_after"]


def test_a_resumed_session_is_all_there_before_its_first_message():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([write("a", "1\n"), say("first"), write("b", "2\n"), say("second")]) as run:
            run.wait("idle")
            begin(run, "one")
            begin(run, "two")
            run.end()
        kept = one.contexts[1]
        with one.run([say("third")], "--resume", "last") as run:
            run.wait("idle")
            run.send("command", command="diff")
            assert changed(run.wait("changes")) == ["a", "b"]
            run.send("command", command="fork")
            assert "begins where this one stands (turn 4)" in run.wait("note")["text"]
            run.send("command", command="undo")
            assert "1 file" in run.wait("note")["text"]
            assert (one.work / "a").exists() and not (one.work / "b").exists()
            run.send("command", command="rewind", text="2")
            assert "back behind turn 2" in run.wait("note")["text"]
            begin(run, "three")
            run.send("command", command="diff")
            assert changed(run.wait("changes")) == ["a"]
            changes, this = end_changes(run)
        assert changes == ["a"]
        assert one.contexts[-1][:len(kept)] == kept
        assert one.contexts[-1] == one.live_ids(this)[:len(one.contexts[-1])]


def test_budget_is_said_at_any_time():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([call("until test -e go; do sleep 0.1; done"), say("done")], "--max-calls", "5", "--max-time", "1h") as run:
            run.wait("idle")
            run.message("one")
            run.wait("tool_call")
            run.send("command", command="budget")
            text = run.wait("note")["text"]
            assert "of 5" in text and "s left" in text, text
            run.send("command", command="undo")
            assert "it works" in run.wait("note")["text"]
            (one.work / "go").touch()
            run.wait("idle", stop="answer")
            run.end()


def test_a_difference_comes_between_two_steps():
    cli_support.needs_sandbox()
    with session() as one:
        slow = say("again", repeat=True, delay_us=1000)
        with one.run([call("echo 1 >a; until rm go 2>/dev/null; do sleep 0.1; done; echo 2 >b"), slow]) as run:
            run.wait("idle")
            run.message("one")
            run.wait("tool_call")
            run.send("command", command="diff")
            assert "when this step is over" in run.wait("note")["text"]
            assert not any(event["event"] == "tool_result" for event in run.events)
            (one.work / "go").touch()
            changes = run.wait("changes")
            assert any(event["event"] == "tool_result" for event in run.events)
            assert [file["path"] for file in changes["files"]] == ["a", "b"], changes
            run.wait("content")
            (one.work / "c").write_text("3\n")
            run.send("command", command="diff")  # at once, while the model writes
            changes = run.wait("changes")
            assert [file["path"] for file in changes["files"]] == ["a", "b", "c"], changes
            run.wait("content")
            run.send("interrupt")
            run.wait("idle", stop="interrupt")
            run.end()


def test_status_and_permissions_are_said_at_any_time():
    cli_support.needs_sandbox()
    with session() as one:
        rules = configured(one, rules=[{"tool": "shell", "pattern": "rm *", "action": "deny"}])
        with one.run([call("sleep 8"), say("done")], "--policy", "ask", "--effort", "33", *rules) as run:
            run.wait("idle")
            run.send("command", command="status")
            while not (text := run.wait("note")["text"]).startswith("session "):
                pass
            assert text == "session not begun, turn 0 of 12", text
            assert run.wait("note")["text"] == f"workspace {one.work}"
            assert "model " in run.wait("note")["text"]
            assert run.wait("note")["text"] == "effort 33; 4 tools; policy ask"
            assert "context 0 of" in run.wait("note")["text"]
            run.send("command", command="permissions")
            assert run.wait("note")["text"].startswith("policy ask: all but reading")
            assert run.wait("note")["text"].startswith("deny shell rm * (")
            run.message("one")
            question = run.wait("ask")
            run.send("answer", question=question["question"], answer="always")
            run.wait("decision")
            run.send("command", command="status")
            begun = next(event for event in run.events if event["event"] == "session")
            assert run.wait("note")["text"] == f"session {begun['session']}, turn 1 of 12"
            run.send("command", command="permissions")
            while not run.wait("note")["text"].startswith("deny shell"):
                pass
            assert run.wait("note")["text"] == "allow shell sleep 8 (always, in this session)"
            run.wait("idle", stop="answer")
            run.end()


def test_clear_begins_another_session_of_the_same_run():
    cli_support.needs_sandbox()
    with session() as one:
        rules = ["--policy", "ask"]
        turns = [write("a", "1\n"), say("first answer"), write("a", "2\n"), say("second answer")]
        with one.run(turns, *rules) as run:
            run.wait("idle")
            run.send("command", command="clear")
            while "nothing was done" not in run.wait("note")["text"]:
                pass
            run.message("one")
            run.send("command", command="clear")
            question = run.wait("ask")
            assert any("it works" in event.get("text", "") for event in run.events)
            run.send("answer", question=question["question"], answer="always")
            run.wait("idle", stop="answer")
            run.send("command", command="clear")
            run.message("two")  # is for the new session, whenever it comes
            assert run.wait("finished")["stop"] == "quit"
            question = run.wait("ask")  # "always" was for the first one
            run.send("answer", question=question["question"], answer="yes")
            run.wait("idle", stop="answer")
            run.end()
        first, second = [event["session"] for event in run.events if event["event"] == "session"]
        assert first != second and (one.work / "a").read_text() == "2\n"
        for name, task, count in ((first, "one", 2), (second, "two", 2)):
            tree = one.tree_of(name)
            texts = [message["text"] for turn in tree["agents"][0]["turns"] for message in turn["messages"]
                     if message["role"] == "user"]
            assert texts == [task] and len(tree["agents"][0]["turns"]) == count, tree
            assert tree["status"] == "done", tree["status"]
        assert one.contexts[2] == one.live_ids(second)[:len(one.contexts[2])]


def test_clear_keeps_what_comes_behind_it():
    """Lines of a file: all that one run read and did not use is there for the next."""
    with session() as one:
        (one.folder / "lines").write_text("one\n/clear\ntwo\n/clear\nthree\n")
        (one.folder / "script.json").write_text(json.dumps({"turns": [say("1"), say("2"), say("3")]}))
        for source in ("file", "pipe"):
            text = (one.folder / "lines").read_text()
            stdin = {"stdin": open(one.folder / "lines", "rb")} if source == "file" else {"input": text.encode()}
            done = subprocess.run(
                [PROGRAM, "run", "--interactive", "-C", str(one.work), "--state", str(one.state)], **stdin,
                stdout=subprocess.PIPE, check=True, timeout=60,
                env=dict(os.environ, HEARTH_SCRIPT=str(one.folder / "script.json")))
            assert done.stdout.count(b"# session ") == 3, done.stdout
        tasks = [json.loads(line)["task"] for line in one.hearth("sessions", "list", "--json").splitlines()]
        assert sorted(tasks) == sorted(2 * ["one", "two", "three"]), tasks


def test_rewind_to_zero_begins_again():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [write("a", "1\n"), say("first answer"), say("other answer"), say("last answer")]
        with one.run(turns) as run:
            run.wait("idle")
            begin(run, "the first task")
            run.send("command", command="rewind", text="0")
            assert "back before turn 1: 0 tokens of context, 1 file put back" in run.wait("note")["text"]
            assert not (one.work / "a").exists()
            begin(run, "the other task")
            this = next(event["session"] for event in run.events if event["event"] == "session")
            run.end()
        *_, before, after = one.contexts
        assert after != before and after == one.live_ids(this)[:len(after)]
        live = [(message["role"], message["text"]) for turn in one.tree()["agents"][0]["turns"]
                if not turn.get("is_rewound") for message in turn["messages"]]
        assert [text for role, text in live if role == "user"] == ["the other task"], live
        with one.run(turns, "--resume", "last") as run:
            run.wait("idle")
            begin(run, "more")
            run.end()
        assert one.contexts[-1][:len(after)] == after


def noise(name, kilobytes=300):
    """What does not get smaller in a store."""
    return call(f"head -c {kilobytes}000 /dev/urandom >{name}")


def record(one, *arguments, count=2):
    """A session of some calls that change a file each, in an empty workspace; its id."""
    for path in one.work.iterdir():
        path.unlink()
    turns = [noise(f"f{index}") for index in range(count)] + [say("done")]
    with one.run(turns, *arguments) as run:
        run.wait("idle")
        begin(run, "one")
        run.end()
    return one.tree()["id"]


def plain(one, *arguments):
    """A command of its own: (exit status, output, what it says)."""
    done = subprocess.run([PROGRAM, *arguments, "--state", str(one.state)], capture_output=True, text=True,
                          cwd=cli_support.here(one.state), check=False,
                          env=dict(os.environ, HEARTH_SCRIPT=str(one.folder / "script.json")))
    return done.returncode, done.stdout, done.stderr


def snapshot_bytes(one):
    return sum(path.stat().st_blocks * 512 for path in (one.state / "snapshots").rglob("objects/??/*"))


def test_the_oldest_snapshots_go_at_the_end_of_a_run():
    cli_support.needs_sandbox()
    with session() as one:
        old = record(one)
        assert snapshot_bytes(one) > 600_000
        new = record(one, "--set", "sessions.snapshots_max=900K")
        assert snapshot_bytes(one) <= 900 << 10, snapshot_bytes(one)
        for command in (["undo", old], ["rewind", old, "--turn", "1"], ["diff", old]):
            status, _, said = plain(one, "sessions", *command)
            assert status == 5 and said.count("\n") == 1, said
            assert old in said and "sessions.snapshots_max" in said, said
        assert plain(one, "sessions", "show", old)[0] == 0
        assert plain(one, "sessions", "rewind", old, "--turn", "1", "--keep-files")[0] == 0
        # The session that was kept goes back as far as it could before.
        assert "f1" in plain(one, "sessions", "diff", new, "--stat")[1]
        for left in (["f0"], []):
            assert plain(one, "sessions", "undo", new)[0] == 0
            assert [path.name for path in one.work.iterdir()] == left
        # One that lost its snapshots goes on, and can take back what it does from now on.
        with one.run([noise("more"), say("again")], "--resume", old) as run:
            run.wait("idle")
            begin(run, "two")
            run.send("command", command="undo")
            assert "1 file put back" in run.wait("note")["text"]
            run.send("command", command="undo")
            assert "snapshots_max" in run.wait("warning")["text"]
            run.end()
        assert not (one.work / "more").exists()


def test_a_run_within_the_bound_removes_nothing():
    cli_support.needs_sandbox()
    with session() as one:
        old = record(one)
        record(one)
        record(one, "--set", "sessions.snapshots_max=off")
        before = snapshot_bytes(one)
        assert "4294967296" in one.hearth_config()
        shutil.rmtree(one.work)
        one.work.mkdir()
        status, text, _ = plain(one, "sessions", "rewind", old, "--turn", "1", "--keep-files")
        assert status == 0, text
        assert "f1" in plain(one, "sessions", "diff", old, "--stat")[1]
        assert snapshot_bytes(one) == before


def test_prune_says_what_goes_and_lets_it_go():
    cli_support.needs_sandbox()
    with session() as one:
        old = record(one)
        other = Branching(one.folder / "other", one.state)
        there = record(other)
        new = record(one)
        before = snapshot_bytes(one)
        status, text, said = plain(one, "sessions", "prune", "--dry-run", "--max", "900K")
        assert status == 0 and "2 workspaces" in text, text + said
        assert old in text and there in text and new not in text, text
        assert snapshot_bytes(one) == before
        done = json.loads(plain(one, "sessions", "prune", "--max", "900K", "--json")[1])
        assert [loss["id"] for loss in done["sessions"]] == [there, old], done
        assert done["bytes_before"] == before and done["bytes_after"] == snapshot_bytes(one), done
        assert done["bytes_after"] <= 900 << 10, done
        assert "0 bytes" in plain(one, "sessions", "prune", "--max", "900K")[1]
        assert plain(one, "sessions", "undo", there)[0] == 5
        assert plain(one, "sessions", "undo", new)[0] == 0
        # Another workspace begins anew, as it was before its first run.
        there = record(other)
        assert plain(one, "sessions", "undo", there)[0] == 0
        with one.run([say("done")]) as run:
            run.wait("idle")
            status, _, said = plain(one, "sessions", "prune")
            assert status == 3 and said.count("\n") == 1 and "in use" in said, said
            assert plain(one, "sessions", "prune", "--dry-run")[0] == 0
            run.end()
        assert plain(one, "sessions", "prune", "--max", "x")[0] == 2


def test_a_killed_prune_takes_nothing_from_what_stays():
    cli_support.needs_sandbox()
    with session() as one:
        for _ in range(3):
            new = record(one)
        chance = random.Random(7)
        command = [PROGRAM, "sessions", "prune", "--max", "900K", "--state", str(one.state)]
        for _ in range(12):
            # Killed at any moment: before, in and behind what it removes.
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  env=dict(os.environ, HEARTH_SCRIPT=str(one.folder / "script.json"))) as prune:
                time.sleep(chance.uniform(0, 0.3))
                prune.kill()
            assert "f1" in plain(one, "sessions", "diff", new, "--stat")[1]
        assert plain(one, "sessions", "prune", "--max", "900K")[0] == 0
        assert snapshot_bytes(one) <= 900 << 10
        assert plain(one, "sessions", "undo", new)[0] == 0
        assert plain(one, "sessions", "undo", new)[0] == 0


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
