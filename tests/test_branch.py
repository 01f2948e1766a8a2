#!/usr/bin/env python3
"""Forks and rewinds of recorded sessions, and their patches: test_branch.py HEARTH [NAME-PART]...

With the bundled model, greedy: what the rest of a run writes is known, so a fork or a rewound session
in the same workspace must come to the same tokens. Helpers and output are those of cli_support.py.
"""
import json
import os
import pty
import shutil
import subprocess
import sys

import cli_support
from cli_support import GREEDY, MINI, Scratch, check, hearth, needs_sandbox
from test_resume import DEMO, context_ids, resume, whole_run


def recorded(scratch):
    task = scratch.demo(DEMO)
    check(scratch.run(task["prompt"], *GREEDY), 0)
    return scratch.tree("--tokens")


def fork(scratch, *arguments):
    done = check(hearth("sessions", "fork", *arguments, "--state", scratch.state), 0)
    return done.stdout.decode().split("\n")[0]


def show(scratch, session):
    return json.loads(check(
        hearth("sessions", "show", session, "--state", scratch.state, "--json", "--tokens"), 0).stdout)


def live_ids(tree):
    """Of the context: turns that were rewound are no part of it."""
    agent = dict(tree["agents"][0])
    agent["turns"] = [turn for turn in agent["turns"] if not turn.get("is_rewound")]
    return context_ids({"agents": [agent]})


def diff(scratch, *arguments):
    return check(hearth("sessions", "diff", *arguments, "--state", scratch.state), 0).stdout.decode()


def unchanged_turns(tree):
    """How many turns ran before the first that changed the workspace."""
    count = 0
    for turn in tree["agents"][0]["turns"]:
        if any(call["commit_before"] != call["commit_after"] for call in turn["calls"]):
            return count
        count += 1
    return count


def test_a_fork_goes_on_as_its_session_did():
    needs_sandbox()
    with Scratch() as scratch:
        tree = recorded(scratch)
        turn = unchanged_turns(tree)
        assert turn >= 1
        session = fork(scratch, "last", "--turn", str(turn))
        assert show(scratch, session)["agents"][0]["fork_of"] == tree["id"]
        shutil.rmtree(scratch.work)
        scratch.work.mkdir()
        scratch.demo(DEMO)
        check(resume(scratch, session=session), 0)
        gone_on = show(scratch, session)
        assert live_ids(gone_on) == whole_run()["ids"]
        inherited = [turn.get("is_inherited", False) for turn in gone_on["agents"][0]["turns"]]
        assert inherited == [True] * turn + [False] * (len(inherited) - turn), inherited
        assert show(scratch, tree["id"])["agents"] == tree["agents"]
        assert gone_on["usage"]["turns"] == len(inherited) - turn
        scratch.check_database()


def test_a_fork_behind_the_end_takes_a_new_task():
    needs_sandbox()
    with Scratch() as scratch:
        tree = recorded(scratch)
        session = fork(scratch)
        done = hearth("run", "--resume", session, "Say what you did.", "--max-turns", "1",
                      "--state", scratch.state, "--json")
        assert done.returncode in (0, 4), done.stderr
        again = show(scratch, session)
        assert live_ids(again)[:len(context_ids(tree))] == context_ids(tree)
        # The context is not computed again: the cache on disk has it.
        first = again["agents"][0]["turns"][len(tree["agents"][0]["turns"])]["cache"]
        assert first["evaluated_tokens"] < first["prompt_tokens"] // 2, first


def test_a_diff_is_a_patch_that_applies():
    needs_sandbox()
    with Scratch() as scratch, Scratch() as other:
        tree = recorded(scratch)
        patch = diff(scratch)
        assert "grid.py" in patch
        other.demo(DEMO)
        applied = subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=other.work,
                                 capture_output=True, check=False)
        assert applied.returncode == 0, applied.stderr
        assert (other.work / "grid.py").read_bytes() == (scratch.work / "grid.py").read_bytes()
        turns = range(1, len(tree["agents"][0]["turns"]) + 1)
        parts = [diff(scratch, "--turn", str(turn)) for turn in turns]
        assert sum(1 for part in parts if part) >= 1
        assert "grid.py\t+" in diff(scratch, "--stat")


def test_a_diff_does_not_command_a_terminal():
    with Scratch() as scratch:
        task = scratch.demo(DEMO)
        (scratch.work / "grid.py").write_text(
            "# \x1b]0;title\x07\u202e\n" + (scratch.work / "grid.py").read_text())
        needs_sandbox()
        check(scratch.run(task["prompt"], *GREEDY), 0)
        ours, theirs = pty.openpty()
        done = subprocess.run([cli_support.HEARTH, "sessions", "diff", "--state", str(scratch.state)],
                              cwd=scratch.work, stdin=subprocess.DEVNULL, stdout=theirs, check=False)
        os.close(theirs)
        shown = os.read(ours, 65536)
        os.close(ours)
        assert done.returncode == 0 and b"grid.py" in shown, shown
        assert b"\x1b" not in shown and b"\xe2\x80\xae" not in shown, shown
        assert "\x1b" in diff(scratch)


def test_a_rewound_session_does_again_what_it_did():
    needs_sandbox()
    with Scratch() as scratch:
        tree = recorded(scratch)
        count = len(tree["agents"][0]["turns"])
        fixed = (scratch.work / "grid.py").read_text()
        (scratch.work / ".mine").write_text("a file of the user's")
        for turn in [count - 1, unchanged_turns(tree), 0]:
            check(hearth("sessions", "rewind", "--turn", str(turn), "--state", scratch.state), 0)
            rewound = show(scratch, "last")["agents"][0]["turns"]
            assert sum(not one.get("is_rewound") for one in rewound) == turn
            check(resume(scratch), 0)
            assert live_ids(show(scratch, "last")) == whole_run()["ids"]
            assert (scratch.work / "grid.py").read_text() == fixed
            assert (scratch.work / ".mine").read_text() == "a file of the user's"
        scratch.check_database()


def test_undo_takes_back_one_change_after_the_other():
    needs_sandbox()
    with Scratch() as scratch:
        recorded(scratch)
        broken = (MINI / "tasks-demo" / DEMO / "repo" / "grid.py").read_text()
        fixed = (scratch.work / "grid.py").read_text()
        assert fixed != broken
        for _ in range(20):
            done = hearth("sessions", "undo", "--state", scratch.state)
            if done.returncode != 0:
                break
        check(done, 5)
        assert b"all are undone" in done.stderr, done.stderr
        assert (scratch.work / "grid.py").read_text() == broken
        assert live_ids(show(scratch, "last")) == whole_run()["ids"]


def test_a_rewind_refuses_what_somebody_else_changed():
    needs_sandbox()
    with Scratch() as scratch:
        recorded(scratch)
        (scratch.work / "grid.py").write_text("mine")
        done = hearth("sessions", "rewind", "--turn", "1", "--state", scratch.state)
        assert done.returncode not in (0, 1), done
        assert b"grid.py" in done.stderr, done.stderr
        assert (scratch.work / "grid.py").read_text() == "mine"
        assert not any(turn.get("is_rewound") for turn in show(scratch, "last")["agents"][0]["turns"])
        check(hearth("sessions", "rewind", "--turn", "1", "--keep-files", "--state", scratch.state), 0)
        assert (scratch.work / "grid.py").read_text() == "mine"


def test_what_cannot_be_forked_is_named():
    with Scratch() as scratch:
        missing = hearth("sessions", "fork", "last", "--state", scratch.state)
        check(missing, 5)
    needs_sandbox()
    with Scratch() as scratch:
        recorded(scratch)
        late = check(hearth("sessions", "fork", "--turn", "99", "--state", scratch.state), 5)
        assert b"no turn 99" in late.stderr, late.stderr
        check(hearth("sessions", "fork", "--turn", "0", "--state", scratch.state), 2)


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
