#!/usr/bin/env python3
"""Another model for the same conversation: test_model_change.py HEARTH_SCRIPTED [NAME-PART]...

/model DIR while the program runs with a scripted engine, whose second model has other merges in its tokenizer.
Helpers are those of test_commands.py.
"""
import contextlib
import json
import os
import pathlib
import sqlite3
import subprocess
import sys

import cli_support
from test_commands import begin, session, write
from test_interactive import PROGRAM, say

MINI = pathlib.Path(__file__).resolve().parents[1] / "examples" / "mini" / "model"


def other_model(one, name="other"):
    """A model whose texts are other tokens."""
    folder = one.folder / name
    folder.mkdir()
    for file in MINI.iterdir():
        if file.name != "tokenizer.json":
            (folder / file.name).symlink_to(file)
    tokenizer = json.loads((MINI / "tokenizer.json").read_text())
    merges = tokenizer["model"]["merges"]
    del merges[len(merges) // 16:]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def change(run, directory):
    run.send("command", command="model", text=str(directory))
    while True:
        text = run.wait("note")["text"]
        if text.startswith("goes on with"):
            return text


def messages_of(tree):
    """Texts of the context: what stands behind the last turn that begins one."""
    turns = [turn for turn in tree["agents"][0]["turns"] if not turn.get("is_rewound")]
    first = max([i for i, turn in enumerate(turns) if turn.get("compaction")], default=0)
    return [(message["role"], message["text"]) for turn in turns[first:] for message in turn["messages"]]


def test_a_conversation_goes_on_under_another_model():
    cli_support.needs_sandbox()
    with session() as one:
        other = other_model(one)
        turns = [write("a", "1\n"), say("first answer"), write("b", "2\n"), say("second answer"),
                 say("third answer"), say("fourth answer")]
        with one.run(turns) as run:
            run.wait("idle")
            begin(run, "one")
            old = next(event["session"] for event in run.events if event["event"] == "session")
            said = change(run, other)
            assert old in said and str(other) in said, said
            again = run.events[-2]
            assert again["event"] == "session" and again["session"] != old, again
            assert again["model"] == str(other) and again["model_digest"] == "1" * 64, again
            begin(run, "two")
            run.end()
        fork = again["session"]
        first, last_old, first_new = one.contexts[0], one.contexts[1], one.contexts[2]
        assert len(first_new) > len(last_old) * 1.1
        assert one.contexts[3][:len(first_new)] == first_new  # and from there on it only grows
        tree = one.tree_of(fork)
        assert [text for role, text in messages_of(tree) if role in ("user", "assistant") and text] == [
            "one", "first answer", "two", "second answer"], messages_of(tree)
        assert tree["model"] == str(other), tree["model"]
        before = one.tree_of(old)
        assert len(before["agents"][0]["turns"]) == 2 and before["model"] == str(MINI), before["model"]
        assert one.live_ids(fork)[:len(one.contexts[3])] == one.contexts[3]
        # The fork goes on with its model, the old session with the old one.
        with one.run([say("fifth answer")], "--resume", old) as run:
            run.wait("idle")
            begin(run, "other")
            run.end()
        assert one.contexts[-1][:len(last_old)] == last_old
        assert (one.work / "b").exists()


def test_a_fork_under_another_model_is_resumed_in_its_turn():
    with session() as one:
        other = other_model(one)
        with one.run([say("first answer"), say("second answer")]) as run:
            run.wait("idle")
            begin(run, "one")
            change(run, other)
            run.end()
        tree = one.tree_of("last")
        assert messages_of(tree)[1:] == [("user", "one"), ("assistant", "first answer")], messages_of(tree)
        # This engine's digest says in which place a model was opened: the first is never the second.
        refused = subprocess.run(
            [PROGRAM, "run", "--resume", "last", "--interactive", "--state", str(one.state)], input="",
            cwd=one.work, text=True, env=dict(os.environ, HEARTH_SCRIPT=str(one.folder / "script.json")),
            capture_output=True)
        assert refused.returncode == 3 and "another model" in refused.stderr, refused
        with contextlib.closing(sqlite3.connect(one.state / "sessions.db")) as database:
            database.execute("UPDATE session SET model_digest = ?", ("0" * 64,))
            database.commit()
        with one.run([say("second answer"), say("third answer")], "--resume", "last") as run:
            run.wait("idle")
            begin(run, "two")
            begin(run, "three")
            run.end()
        assert one.contexts[2][:len(one.contexts[1])] == one.contexts[1]
        assert one.live_ids("last")[:len(one.contexts[2])] == one.contexts[2]
        with one.run([say("fourth answer")], "--resume", "last") as run:
            run.wait("idle")
            begin(run, "four")
            run.end()
        assert one.contexts[3][:len(one.contexts[2])] == one.contexts[2]
        texts = [text for role, text in messages_of(one.tree_of("last")) if role == "assistant"]
        assert texts == ["first answer", "second answer", "third answer", "fourth answer"], texts


def test_clear_goes_on_with_the_model_that_runs():
    with session() as one:
        other = other_model(one)
        with one.run([say("first answer"), say("second answer"), say("third answer")]) as run:
            run.wait("idle")
            begin(run, "one")
            change(run, other)
            begin(run, "two")
            run.send("command", command="clear")
            run.wait("finished")
            begin(run, "three")
            run.end()
        begun = [event for event in run.events if event["event"] == "session"][-1]
        assert begun["model"] == str(other) and begun["model_digest"] == "1" * 64, begun
        assert messages_of(one.tree_of("last"))[1:] == [("user", "three"), ("assistant", "third answer")]


def test_a_model_that_cannot_be_used_changes_nothing():
    with session() as one:
        broken = other_model(one, "broken")
        (broken / "tokenizer.json").write_text("{")
        with one.run([say("first answer"), say("second answer")]) as run:
            run.wait("idle")
            begin(run, "one")
            for directory in (one.folder / "nowhere", broken):
                run.send("command", command="model", text=str(directory))
                assert "the model stays as it is" in run.wait("warning")["text"]
            run.send("command", command="model")
            while not run.wait("note")["text"].startswith(f"model {MINI}"):
                pass
            begin(run, "two")
            run.end()
        assert one.select("SELECT count(*) FROM session") == [(1,)]
        assert one.contexts[1][:len(one.contexts[0])] == one.contexts[0]


def test_messages_wait_and_an_end_meanwhile_is_an_end():
    with session() as one:
        other = other_model(one)
        with one.run([say("first answer"), say("second answer")]) as run:
            run.wait("idle")
            begin(run, "one")
            run.send("command", command="model", text=str(other))
            run.message("two")
            run.wait("session", model=str(other))
            assert run.wait("user")["text"] == "two"
            run.wait("idle", stop="answer")
            run.send("command", command="model", text=str(MINI))
            run.end()
        for number, in one.select("SELECT status FROM session"):
            assert number in (1, 3), number


def test_what_another_model_wrote_is_not_gone_back_to():
    with session() as one:
        other = other_model(one)
        with one.run([say("first answer"), say("second answer"), say("third answer")]) as run:
            run.wait("idle")
            begin(run, "one")
            change(run, other)
            begin(run, "two")
            run.send("command", command="rewind", text="1")
            assert "another model" in run.wait("warning")["text"]
            begin(run, "three")
            run.end()


def test_it_is_changed_before_the_first_message():
    with session() as one:
        other = other_model(one)
        with one.run([say("first answer")]) as run:
            run.wait("idle")
            change(run, other)
            run.message("one")
            assert run.wait("session")["model"] == str(other)
            run.wait("idle", stop="answer")
            run.end()
        assert one.select("SELECT count(*) FROM session") == [(1,)]
        assert one.live_ids()[:len(one.contexts[0])] == one.contexts[0]


def test_commands_work_before_the_first_turn_under_another_model():
    with session() as one:
        other = other_model(one)
        with one.run([say("first answer"), say("second answer"), say("third answer")]) as run:
            run.wait("idle")
            begin(run, "one")
            begin(run, "two")
            change(run, other)
            run.send("command", command="fork")
            fork = run.wait("note")["text"].split()[1]
            run.send("command", command="compact")
            assert "nothing to make smaller" in run.wait("note")["text"]
            run.send("command", command="rewind", text="3")  # the turn that the change made
            assert "back behind turn 3" in run.wait("note")["text"]
            begin(run, "three")
            run.end()
        assert one.tree_of(fork)["model"] == str(other)
        texts = [text for role, text in messages_of(one.tree_of("last")) if role == "assistant"]
        assert texts[:2] == ["first answer", "second answer"], texts


def test_a_conversation_that_is_too_long_for_the_other_model_stays():
    with session() as one:
        other = other_model(one)
        script = {"context_max": 16000, "other_context_max": 1200}
        with one.run([say("first answer"), say("second answer")], script=script) as run:
            run.wait("idle")
            begin(run, "one, and many words " * 400)
            run.send("command", command="model", text=str(other))
            text = run.wait("warning")["text"]
            assert "stays as it is" in text and "no more than 1200" in text and "/compact" in text, text
            begin(run, "two")
            run.end()
        assert one.select("SELECT count(*) FROM session") == [(1,)]


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
