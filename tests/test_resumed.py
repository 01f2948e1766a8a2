#!/usr/bin/env python3
"""What a resumed session shows and keeps: test_resumed.py HEARTH_SCRIPTED [NAME-PART]...

The end of its conversation, its todo list, its person's answers. Helpers are those of test_terminal.py and
test_interactive.py.
"""
import os
import subprocess
import sys

import cli_support
import test_interactive
from test_commands import session
from test_interactive import BESIDE, PROGRAM, WAIT, call, configured, hook, say
from test_terminal import Place, Screen


def todo(*items):
    return {"thinking": "hm", "text": "", "calls": [{"name": "todo", "arguments": {"todos": [
        {"content": content, "status": status} for content, status in items]}}]}


def play(place, messages, turns, *options):
    """A run on a terminal that is given these messages, and left."""
    with Screen(place, place.command(*options), turns, height=100) as screen:
        screen.idle()
        for number, message in enumerate(messages):
            screen.enter(message)
            screen.wait(f"answer {number}", "waiting | ")
        screen.keys("C-d")
        screen.ended()


def again(one):
    """What a program shows of the newest session when it is resumed, as lines."""
    return subprocess.run(
        [PROGRAM, "run", "--interactive", "--state", str(one.state), "--resume", "last"],
        env=dict(os.environ, HEARTH_SCRIPT=str(one.folder / "script.json")),
        input=b"", stdout=subprocess.PIPE, cwd=one.work, timeout=WAIT, check=True).stdout.decode()


# ---- what is seen --------------------------------------------------------------------------------


def test_what_the_host_told_the_model_is_not_shown_as_the_persons():
    with Place() as place:
        with Screen(place, place.command(), [say("answer 0"), say("answer 1")]) as screen:
            screen.idle()
            screen.enter("first")
            screen.wait("answer 0", "waiting | ")
            screen.enter("/effort 20")
            screen.wait("from the next turn on")
            screen.enter("second")
            screen.wait("answer 1", "waiting | ")
            screen.keys("C-d")
            screen.ended()
        with Screen(place, place.command("--resume", "last"), []) as screen:
            text = screen.idle()
            assert "# | Reasoning effort from now on: 20 of 100.\nyou: second\n" in text, text
            assert text.count("you: ") == 2, text


def test_what_a_stop_hook_said_is_not_shown_as_the_persons():
    cli_support.needs_sandbox()
    with test_interactive.session(BESIDE) as one:
        stop = hook(one, "stop", "if grep -q enough; then exit 0; fi; echo more please >&2; exit 2\n")
        del stop["tool"]
        with one.run([say("an answer"), say("it is enough")], *configured(one, hooks={"stop": [stop]})) as run:
            run.message("one")
            run.wait("idle", stop="answer")
            run.end()
        plain = again(one)
        assert "\nyou: one\nan answer\n# | Checked before the end: hook stop: more please\nit is enough\n" in plain, plain
        assert plain.count("you: ") == 1, plain


def test_the_end_of_the_conversation_is_shown():
    cli_support.needs_sandbox()
    with Place() as place:
        many = dict(call(""), calls=[
            {"name": "shell", "arguments": {"command": f"echo call{i}\necho more"}} for i in range(15)])
        turns = [say("answer 0"), call("echo early"), say("answer 1"), many, say("answer 2\n\n" + "line\n\n" * 30),
                 say("# Title\n\nand **bold** answer 3")]
        play(place, ["first", "second", "third", "fourth"], turns)
        with Screen(place, place.command("--resume", "last"), [say("answer 4")], height=100) as screen:
            text = screen.idle()
            shown = text.split("# so far ")[1]
            head = shown.split(")")[0].replace("\n", " ")
            assert head.startswith("(2 earlier messages and outputs of tools: hearth sessions show "), head
            assert str(place.state) in head, head
            assert "first" not in shown and "answer 0" not in shown, shown
            for part in ("you: second", "answer 1", "you: third", "you: fourth",
                         "\nTitle\n\nand bold answer 3\n", "> shell echo call3 ...", "> shell echo call14 ..."):
                assert part in shown, (part, shown)
            assert "call2 " not in shown and "early" not in shown and "4 calls are not shown" in shown, shown
            assert shown.count("\nline\n") < 8, shown
            screen.enter("fifth")
            text = screen.wait("answer 4", "waiting | ")
            assert text.count("you: fourth") == 1, text
            screen.keys("C-d")
            screen.ended()


def test_a_program_sees_what_it_always_saw():
    with session() as one:
        with one.run([say("first")]) as run:
            run.message("one")
            run.wait("idle", stop="answer")
            run.end()
        with one.run([say("second")], "--resume", "last") as run:
            run.wait("idle")
            assert {event["event"] for event in run.events} <= {"note", "idle"}, run.events
            run.message("two")
            run.wait("idle", stop="answer")
            run.end()
        plain = again(one)
        assert "\nyou: one\nfirst\nyou: two\nsecond\n" in plain, plain


def test_text_of_the_record_is_harmless():
    with Place() as place:
        play(place, ["go"], [say("answer 0 \x1b]0;owned\x07 \u202e end")])
        with Screen(place, place.command("--resume", "last"), []) as screen:
            text = screen.idle()
            shown = text.split("# so far ")[1]
            assert "answer 0" in shown and "\x07" not in shown and "\u202e" not in shown, shown


# ---- what is kept --------------------------------------------------------------------------------


def test_the_todo_list_is_there_again():
    cli_support.needs_sandbox()
    with Place() as place:
        turns = [todo(("old", "pending")), todo(("one thing", "completed"), ("other", "in_progress")),
                 say("answer 0")]
        options = ["--tools", "shell,read,edit,write,todo"]
        play(place, ["go"], turns, *options)
        with Screen(place, place.command("--resume", "last", *options), []) as screen:
            text = screen.idle()
            assert "what is to be done:\n  [x] one thing\n  [>] other\n" in text, text


def ask_for(run, answer):
    ask = run.wait("ask")
    run.send("answer", question=ask["question"], answer=answer)


def test_always_counts_for_this_session_alone():
    cli_support.needs_sandbox()
    with session() as one:
        options = ["--policy", "ask"]
        with one.run([call("touch a"), say("done")], *options) as run:
            run.message("one")
            ask_for(run, "always")
            run.wait("idle", stop="answer")
            run.send("command", command="fork")
            fork = run.wait("note")["text"].split()[1]
            run.end()
        rules = one.select("SELECT rule FROM decision")
        assert len(rules) == 1 and rules[0][0].startswith("always touch a"), rules
        first = one.select("SELECT id FROM session ORDER BY number")[0][0]
        turns = [call("touch a"), call("touch b"), say("done")]
        with one.run(turns, "--resume", first, *options) as run:
            run.message("two")
            assert run.wait("tool_result")["status"] == "ok"
            ask_for(run, "no")
            run.wait("idle", stop="answer")
            run.end()
        assert not [event for event in run.events if event["event"] == "ask"][1:]
        for arguments in (["--resume", fork], []):
            with one.run([call("touch a"), say("done")], *arguments, *options) as run:
                run.message("three")
                ask_for(run, "no")
                assert run.wait("tool_result")["status"] == "refused"
                run.wait("idle", stop="answer")
                run.end()


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
