#!/usr/bin/env python3
"""Sessions that go on after a stop, a kill or a restart: test_resume.py HEARTH [NAME-PART]...

With the bundled model, greedy: what an uninterrupted run writes is known, so a session that was cut
anywhere must come to the same tokens. Helpers and output are those of cli_support.py.
"""
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import cli_support
import test_interactive
from cli_support import GREEDY, HEARTH, MINI, Scratch, check, hearth, needs_sandbox

DEMO = "012-trace-call"
SLOW = cli_support.is_slow_build()  # with sanitizers: fewer places to cut at


def context_ids(tree):
    """The token ids of the whole context: a run below the end of what precedes it replaces that."""
    ids = []
    for turn in tree["agents"][0]["turns"]:
        for run in turn["token_runs"]:
            assert run["position"] <= len(ids), (run["position"], len(ids))
            ids[run["position"]:] = run.get("ids", [])
    return ids


def tree_of(scratch):
    return scratch.tree("--tokens")


def resume(scratch, *arguments, session="last", **options):
    return hearth("run", "--resume", session, *arguments, "--state", scratch.state, **options)


def resumed_event(done):
    events = [json.loads(line) for line in done.stdout.splitlines()]
    found = [event for event in events if event["event"] == "resumed"]
    assert len(found) == 1, found
    assert found[0]["prompt"] == found[0]["reused"] + found[0]["evaluated"], found
    return found[0]


_whole = {}


def whole_run():
    """Ids and last lines of the run that nobody interrupts; the workspace afterwards."""
    if not _whole:
        with Scratch() as scratch:
            task = scratch.demo(DEMO)
            check(scratch.run(task["prompt"], *GREEDY), 0)
            tree = tree_of(scratch)
            _whole["ids"] = context_ids(tree)
            _whole["turns"] = len(tree["agents"][0]["turns"])
            _whole["answer"] = tree["agents"][0]["turns"][-1]["messages"][-1]["text"]
            _whole["grid"] = (scratch.work / "grid.py").read_text()
    return _whole


def check_is_whole(scratch):
    tree = tree_of(scratch)
    whole = whole_run()
    assert tree["status"] == "done" and tree["stop_reason"] == "answer", tree["stop_reason"]
    assert context_ids(tree) == whole["ids"]
    assert tree["agents"][0]["turns"][-1]["messages"][-1]["text"] == whole["answer"]
    assert (scratch.work / "grid.py").read_text() == whole["grid"]
    scratch.check_database()
    return tree


# ---- stops ---------------------------------------------------------------------------------------


def test_a_session_cut_at_any_turn_comes_to_the_same_tokens():
    needs_sandbox()
    turns = whole_run()["turns"]
    assert turns >= 4
    for cut in [2] if SLOW else range(1, turns):
        with Scratch() as scratch:
            task = scratch.demo(DEMO)
            check(scratch.run(task["prompt"], *GREEDY, "--max-turns", str(cut)), 4)
            before = tree_of(scratch)
            done = check(resume(scratch, "--json"), 0)
            tree = check_is_whole(scratch)
            assert tree["id"] == before["id"] and len(tree["agents"]) == 1
            assert len(tree["agents"][0]["turns"]) == turns
            assert context_ids(before) == context_ids(tree)[:len(context_ids(before))]
            assert tree["resumptions"][0]["turns_before"] == cut, tree["resumptions"]
            assert tree["resumptions"][0]["stop_reason"] == "turns", tree["resumptions"]
            event = resumed_event(done)
            assert event["context"] == len(context_ids(before)), event
            first = tree["agents"][0]["turns"][cut]["cache"]
            assert first["prompt_tokens"] == event["prompt"] > event["context"], event


def test_every_turn_may_be_a_run_of_its_own():
    needs_sandbox()
    if SLOW:
        raise cli_support.Skipped("takes minutes with sanitizers")
    with Scratch() as scratch:
        task = scratch.demo(DEMO)
        turns = whole_run()["turns"]
        check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "1"), 4)
        for turn in range(1, turns):
            check(resume(scratch, "--max-turns", "1"), 0 if turn == turns - 1 else 4)
        assert len(check_is_whole(scratch)["resumptions"]) == turns - 1


def test_sampling_goes_on_with_the_recorded_seed():
    needs_sandbox()
    if SLOW:
        raise cli_support.Skipped("takes minutes with sanitizers")
    sampled = ["--temperature", "0.7", "--top-p", "0.9", "--seed", "5", "--effort", "50"]
    with Scratch() as scratch, Scratch() as other:
        task = scratch.demo(DEMO)
        other.demo(DEMO)
        scratch.run(task["prompt"], *sampled, "--max-turns", "3")
        whole = tree_of(scratch)
        check(other.run(task["prompt"], *sampled, "--max-turns", "1"), 4)
        resume(other, "--max-turns", str(len(whole["agents"][0]["turns"]) - 1))
        tree = tree_of(other)
        assert context_ids(tree) == context_ids(whole)
        assert tree["agents"][0]["turns"][-1]["sampler"] == whole["agents"][0]["turns"][-1]["sampler"]


def test_a_session_cut_behind_any_turn_hears_of_its_guards_the_same():
    needs_sandbox()
    if SLOW:
        raise cli_support.Skipped("takes minutes with sanitizers")
    given = [*GREEDY, "--max-thinking", "1"]
    with Scratch() as scratch, Scratch() as other:
        check(scratch.run("Say it.", *given), 1)
        check(other.run("Say it.", *given, "--max-turns", "1"), 4)
        check(resume(other, "--max-turns", "1"), 4)
        check(resume(other, "--max-turns", "1"), 4)
        assert context_ids(tree_of(other)) == context_ids(tree_of(scratch))


def start_json(scratch, prompt, *arguments):
    return subprocess.Popen(
        [HEARTH, "run", prompt, "-C", str(scratch.work), "--state", scratch.state, "--json", *GREEDY,
         *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end_at(process, wanted, number, which):
    """Sends a signal at the nth event of a kind."""
    seen = 0
    for line in process.stdout:
        seen += json.loads(line)["event"] == wanted
        if seen == number:
            process.send_signal(which)
            break
    process.communicate(timeout=120)


def test_a_kill_while_the_model_writes_loses_that_turn_only():
    needs_sandbox()
    dangling = 0
    kills = [(1, "turn"), (2, "turn"), (4, "turn"), (3, "reasoning")]
    for turn, event in kills[1:2] if SLOW else kills:
        with Scratch() as scratch:
            task = scratch.demo(DEMO)
            end_at(start_json(scratch, task["prompt"]), event, turn, signal.SIGKILL)
            before = tree_of(scratch)
            assert before["status"] == "interrupted", before["status"]
            dangling += before["agents"][0]["turns"][-1]["token_runs"][-1]["kind"] == "prompt"
            check(resume(scratch), 0)
            tree = check_is_whole(scratch)
            assert tree["resumptions"][0]["status"] == "interrupted"
    assert dangling >= (1 if SLOW else 3), dangling  # else the test tests nothing


def test_a_cut_turn_is_sampled_again_or_stays_when_the_user_speaks():
    if SLOW:
        raise cli_support.Skipped("takes minutes with sanitizers")
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo(DEMO)
        # Not --max-tokens: of a budget the model is told, and writes something else.
        check(scratch.run(task["prompt"], *GREEDY, "--max-turn-tokens", "20"), 1, out="did not end")
        before = tree_of(scratch)
        assert before["agents"][0]["turns"][-1]["stop_reason"] == "length"
        backup = str(scratch.path / "backup")
        shutil.copytree(scratch.state, backup)
        check(resume(scratch), 0)
        check_is_whole(scratch)
        # The same stop, but the user has something to say: what was written stays.
        shutil.rmtree(scratch.state)
        shutil.copytree(backup, scratch.state)
        shutil.rmtree(scratch.work)
        scratch.work.mkdir()
        scratch.demo(DEMO)
        # Made anew, the workspace is another directory, unless a person names it.
        resume(scratch, "Stop. Only say yes.", "--max-turns", "1", "-C", str(scratch.work))
        tree = tree_of(scratch)
        ids = context_ids(before)
        assert context_ids(tree)[:len(ids)] == ids
        said = [message for turn in tree["agents"][0]["turns"] for message in turn["messages"]]
        assert [m["text"] for m in said if m["role"] == "user"][1:] == ["Stop. Only say yes."]


def test_a_call_cut_by_a_kill_is_said_to_be_interrupted():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.slow(60)
        process = scratch.start(cli_support.SLOW_TASK)
        scratch.wait_for_tool(process)
        process.kill()
        process.communicate()
        scratch.check_command_is_gone()
        before = tree_of(scratch)
        scratch.slow(0)
        done = resume(scratch, "--max-turns", "2")
        assert done.returncode in (0, 4), done
        tree = tree_of(scratch)
        turn = tree["agents"][0]["turns"][0]
        assert turn["is_finished"], "what the generation depended on is recorded with its output"
        assert turn["calls"][0]["status"] == "interrupted"
        result = [message for message in turn["messages"] if message["role"] == "tool"]
        assert len(result) == 1 and result[0]["text"].startswith("interrupted: "), result
        assert result[0]["call"] == turn["calls"][0]["number"]
        ids = context_ids(before)
        assert context_ids(tree)[:len(ids)] == ids
        scratch.check_database()


def test_an_interrupt_during_a_tool_goes_on_after_it():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.slow(60)
        process = scratch.start(cli_support.SLOW_TASK)
        scratch.wait_for_tool(process)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 130 and b"# go on: hearth run --resume " in out, out
        scratch.slow(0)
        assert resume(scratch, "--max-turns", "1").returncode in (0, 4)
        first = tree_of(scratch)["agents"][0]["turns"][0]
        assert first["calls"][0]["status"] == "cancelled" and len(first["calls"]) == 1, first["calls"]


def test_a_session_with_replays_goes_on_to_the_same_tokens():
    if SLOW:
        raise cli_support.Skipped("takes minutes with sanitizers")
    needs_sandbox()
    replay = ["--window", "replay", "--max-turns"]
    with Scratch() as scratch, Scratch() as other:
        task = scratch.demo(DEMO)
        other.demo(DEMO)
        scratch.run(task["prompt"], *GREEDY, *replay, "3")
        whole = tree_of(scratch)
        check(other.run(task["prompt"], *GREEDY, *replay, "1"), 4)
        resume(other, *replay, str(len(whole["agents"][0]["turns"]) - 1))
        tree = tree_of(other)
        first = tree["agents"][0]["turns"][0]["cache"]
        assert first["replays"], first  # else the test tests nothing
        assert context_ids(tree) == context_ids(whole)


def test_a_session_that_died_before_its_first_turn_begins_anew():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo(DEMO)
        check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "1"), 4)
        for table in "token_run", "call", "message", "turn", "agent":
            edit(scratch, f"DELETE FROM {table}")
        check(resume(scratch), 0)
        check_is_whole(scratch)


def test_a_prompt_without_output_takes_a_new_message():
    if SLOW:
        raise cli_support.Skipped("takes minutes with sanitizers")
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo(DEMO)
        end_at(start_json(scratch, task["prompt"]), "turn", 2, signal.SIGKILL)
        before = tree_of(scratch)
        runs = before["agents"][0]["turns"][-1]["token_runs"]
        if runs[-1]["kind"] != "prompt":
            raise cli_support.Skipped("the model was faster than the kill")
        resume(scratch, "Stop. Only say yes.", "--max-turns", "1")
        tree = tree_of(scratch)
        ids = context_ids(before)
        same = len(ids) - 8  # the end of the prompt opens a turn of the model, which never came
        assert context_ids(tree)[:same] == ids[:same]
        said = [m["text"] for turn in tree["agents"][0]["turns"] for m in turn["messages"]
                if m["role"] == "user"]
        assert said[-1] == "Stop. Only say yes." and len(said) == 2, said
        assert len(context_ids(tree)) > len(ids)
        scratch.check_database()


# ---- new messages --------------------------------------------------------------------------------


def test_an_ended_session_takes_a_new_message_and_else_says_that_nothing_is_left():
    if SLOW:
        raise cli_support.Skipped("takes minutes with sanitizers")
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo(DEMO)
        check(scratch.run(task["prompt"], *GREEDY), 0)
        before = tree_of(scratch)
        check(resume(scratch), 0, err="nothing is left to do")
        assert tree_of(scratch) == before
        done = resume(scratch, "Thanks. Say once more what was wrong.", "--max-turns", "1",
                      session=before["id"][:20])
        assert b"task: Thanks." in done.stdout, done.stdout
        tree = tree_of(scratch)
        ids = context_ids(before)
        assert context_ids(tree)[:len(ids)] == ids
        assert tree["task"] == before["task"]
        assert tree["agents"][0]["turns"][-1]["messages"][0]["text"].startswith("Thanks.")
        shown = hearth("sessions", "show", "last", "--state", scratch.state).stdout.decode()
        assert "had ended: done (answer)" in shown, shown


def test_calls_that_never_ran_are_not_run_when_the_user_speaks():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo(DEMO)
        check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "1"), 4)
        resume(scratch, "Wait. Do not run anything.", "--max-turns", "1")
        first, second = tree_of(scratch)["agents"][0]["turns"][:2]
        assert first["calls"] == [], first["calls"]
        assert first["messages"][-1]["role"] == "tool", first["messages"]
        assert first["messages"][-1]["text"].startswith("not run: "), first["messages"]
        assert second["messages"][0]["text"] == "Wait. Do not run anything."


# ---- refusals ------------------------------------------------------------------------------------


def edit(scratch, sql):
    with sqlite3.connect(f"{scratch.state}/sessions.db") as database:
        database.execute(sql)
    database.close()


def recorded(scratch, *arguments):
    task = scratch.demo(DEMO)
    check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "2", *arguments), 4)


def test_state_directory_may_be_named_relative_to_here():
    needs_sandbox()
    with Scratch() as scratch:
        recorded(scratch)
        here = os.path.relpath(scratch.state)
        check(hearth("run", "--resume", scratch.tree()["id"], "--max-turns", "1", "--state", here), 4)


def test_each_refusal_has_its_status_and_names_the_reason():
    needs_sandbox()
    with Scratch() as scratch:
        missing = str(scratch.path / "nothing")
        check(hearth("run", "--resume", "last", "--state", missing), 5, err="no sessions recorded yet")
        assert not os.path.exists(missing)
        recorded(scratch)
        named = scratch.tree()["id"]
        check(resume(scratch, session="0123456789"), 5, err="no session '0123456789'")
        check(resume(scratch, session="01"), 2, err="too short")
        check(resume(scratch, session="zebra"), 2, err="is no session id")
        check(resume(scratch, "-C", str(scratch.path), session=named), 2, err="works in .*, not in")
        check(resume(scratch, "--tools", "shell,search"), 2, err="--tools can only take away")
        check(resume(scratch, "--model", str(scratch.path / "no")), 5, err="model")
        model = scratch.path / "other"
        shutil.copytree(MINI / "model", model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config, indent=3))
        done = check(resume(scratch, "--model", str(model)), 3, err="another model: digest")
        assert len(set(cli_support.re.findall(rb"[0-9a-f]{16}\b", done.stderr))) >= 2, done.stderr
        moved = scratch.path / "moved"
        scratch.work.rename(moved)
        check(resume(scratch, session=named), 3, err="the workspace of session .* is gone")
        scratch.work.symlink_to(moved)
        check(resume(scratch, session=named), 3, err="is a link to .*/moved now; to go on there add -C")
        scratch.work.unlink()
        moved.rename(scratch.work)
        # Nothing of all that changed the record.
        assert "resumptions" not in scratch.tree()


def test_a_directory_in_the_workspace_s_place_is_named():
    needs_sandbox()
    with Scratch() as scratch:
        recorded(scratch)
        if subprocess.check_output(["stat", "-c", "%W", scratch.work]).strip() in (b"0", b"-"):
            print("no times of birth here")
            return
        time.sleep(3.1)  # the clocks of file systems lag
        shutil.copytree(scratch.work, scratch.path / "copy")
        shutil.rmtree(scratch.work)
        (scratch.path / "copy").rename(scratch.work)
        check(resume(scratch), 3, err="is another directory now, made since; to go on there add -C")
        assert "resumptions" not in scratch.tree()
        check(resume(scratch, "--max-turns", "1", "-C", str(scratch.work)), 4)


def test_a_running_session_is_not_resumed():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.slow(60)
        process = scratch.start(cli_support.SLOW_TASK)
        scratch.wait_for_tool(process)
        check(resume(scratch), 3, err=str(process.pid))
        process.kill()
        process.communicate()


def test_damaged_and_foreign_sessions_are_refused():
    needs_sandbox()
    with Scratch() as scratch:
        recorded(scratch)
        backup = str(scratch.path / "backup")
        shutil.copytree(scratch.state, backup)
        damages = [
            ("DELETE FROM token_run", "has no token ids"),
            ("DELETE FROM token_run WHERE turn = 1 AND kind = 1", "come before them"),
            ("UPDATE token_run SET position = position + 1 WHERE turn = 2", "come before them"),
            ("UPDATE token_run SET ids = CAST(x'ffffff7f' || substr(ids, 5) AS BLOB)"
             " WHERE turn = 1 AND kind = 0", "token 0 is 2147483647, not 0 to"),
            ("UPDATE message SET calls = x'78' WHERE role = 'assistant'", "message 3 of turn 1"),
            ("DELETE FROM message WHERE role = 'assistant'", "messages of the model|no call asked"),
            ("UPDATE message SET role = 'oracle' WHERE turn = 2", "a message of 'oracle'"),
            ("UPDATE turn SET replays = 'encoder@x'", "replay 1 of a list"),
            ("UPDATE agent SET tools = '['", "recorded tools"),
        ]
        for sql, reason in damages[1::3] if SLOW else damages:
            shutil.rmtree(scratch.state)
            shutil.copytree(backup, scratch.state)
            edit(scratch, sql)
            check(resume(scratch), 5, err=f"^hearth: .*({reason})")


def test_other_numerics_or_another_backend_are_the_reason_of_the_miss():
    needs_sandbox()
    with Scratch() as scratch:
        recorded(scratch, "--cache", "off")
        edit(scratch, "UPDATE turn SET numerics_version = '0'")
        event = resumed_event(check(resume(scratch, "--json", "--max-turns", "1"), 4))
        assert event["miss"] == "other_numerics" and event["reused"] == 0, event
        edit(scratch, "UPDATE turn SET backend = 'cuda sm_90'")
        done = resume(scratch, "--json", "--max-turns", "1")
        assert resumed_event(done)["miss"] == "other_backend"
        assert tree_of(scratch)["agents"][0]["turns"][-1]["cache"]["miss_reason"] == "other_backend"


# ---- a person ------------------------------------------------------------------------------------


def test_a_persons_session_goes_on_from_its_tokens_after_interrupts():
    with test_interactive.session() as one:
        with one.run([], "--temperature", "0", "--cache", "off") as run:
            run.message("Count from 1 to 1000 in words.")
            run.wait("reasoning")
            run.send("interrupt")
            first = run.wait("idle", stop="interrupt")["context"]
            run.message("x " * 300)  # the prompt is cut before, in or behind its evaluation
            run.wait("turn")
            time.sleep(random.random() * 0.3)
            run.send("interrupt")
            second = run.wait("idle")["context"]
            run.message("Say yes.")
            third = run.wait("idle")["context"]
            usage = [event for event in run.events if event["event"] == "usage"]
            assert third > second >= first > 0, (first, second, third)
            for before, after in zip(usage, usage[1:]):  # nothing is computed twice
                assert after["reused"] >= before["prompt"] + before["sampled"] - 1 or \
                    after["prompt"] == 0, (before, after)
            run.end()
        assert len(context_ids(one.tree())) == third
        with one.run([], "--resume", "last", "--cache", "off") as run:
            run.wait("idle")
            run.message("And now?")
            assert run.wait("resumed")["context"] == third
            run.wait("idle")
            run.end()


# ---- the cache on disk ---------------------------------------------------------------------------


def test_after_a_restart_the_context_comes_from_disk():
    needs_sandbox()
    with Scratch() as scratch:
        recorded(scratch)
        if not any(pathlib.Path(scratch.state, "cache").rglob("*")):
            raise cli_support.Skipped("this build keeps no cache on disk")
        done = check(resume(scratch, "--json"), 0)
        event = resumed_event(done)
        assert event["restored_disk"] >= event["context"] // 128 * 128 - 128 > 0, event
        assert event["evaluated"] < event["prompt"] // 2, event
        check_is_whole(scratch)


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
