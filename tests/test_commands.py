#!/usr/bin/env python3
"""Commands of a person on record and workspace: test_commands.py HEARTH_SCRIPTED [NAME-PART]...

diff, undo, rewind, fork, sessions and budget, while the program runs with a scripted engine. Helpers are
those of test_interactive.py.
"""
import contextlib
import json
import sys
import tempfile

import test_cli
from test_interactive import Session, call, say


class Branching(Session):
    """A session whose contexts need not begin with the one before."""

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
    test_cli.needs_sandbox()
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
    test_cli.needs_sandbox()
    with session() as one:
        with one.run([write("a", "1\n"), write("a", "2\n"), say("done"), say("I see")]) as run:
            run.wait("idle")
            begin(run, "one")
            run.send("command", command="undo")
            assert "1 files put back" in run.wait("note")["text"]
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
    test_cli.needs_sandbox()
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
    test_cli.needs_sandbox()
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
            assert "1 files put back" in run.wait("note")["text"]
            assert not (one.work / "a").exists()
            run.end()


def test_a_fork_begins_where_the_session_stands():
    test_cli.needs_sandbox()
    with session() as one:
        with one.run([write("a", "1\n"), say("first answer"), say("second answer")]) as run:
            run.wait("idle")
            begin(run, "one")
            run.send("command", command="fork")
            fork = run.wait("note")["text"].split()[1]
            begin(run, "two")
            run.send("command", command="sessions")
            assert fork in run.wait("note")["text"] + run.wait("note")["text"]
            run.end()
        with one.run([say("forked answer")], "--resume", fork) as run:
            run.wait("idle")
            begin(run, "other")
            run.end()
        texts = [message["text"] for turn in one.tree_of(fork)["agents"][0]["turns"]
                 for message in turn["messages"] if message["role"] == "user"]
        assert texts == ["one", "other"], texts


def test_budget_is_said_at_any_time():
    test_cli.needs_sandbox()
    with session() as one:
        with one.run([call("sleep 1"), say("done")], "--max-calls", "5", "--max-time", "1h") as run:
            run.wait("idle")
            run.message("one")
            run.wait("tool_call")
            run.send("command", command="budget")
            text = run.wait("note")["text"]
            assert "of 5" in text and "s left" in text, text
            run.send("command", command="undo")
            assert "it works" in run.wait("note")["text"]
            run.wait("idle", stop="answer")
            run.end()


def main():
    parts = sys.argv[2:]
    return test_cli.run_tests(
        [(name, test) for name, test in globals().items()
         if name.startswith("test_") and callable(test)
         and (not parts or any(part in name for part in parts))])


if __name__ == "__main__":
    sys.exit(main())
