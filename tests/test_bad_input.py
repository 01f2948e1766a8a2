#!/usr/bin/env python3
"""Files of a person that are no good, seen in whole runs: test_bad_input.py HEARTH_SCRIPTED [NAME-PART]...

One line says what is wrong, and the session can be resumed. Beside these: hooks that hang (test_config_cli.py), servers
that flood, terminals that vanish (test_promises.py), workspaces that are deleted (test_interactive.py), full disks
(test_sessions_cli.py, test_cli_stops.py).
"""
import sys

import cli_support
from test_commands import begin, plain
from test_interactive import say, session


def goes_on(one, *arguments):
    with one.run([say("back")], "--resume", "last", *arguments) as run:
        run.wait("idle")
        begin(run, "go on")
        run.end()
    assert run.error == "", run.error
    assert one.messages()[-1] == ("assistant", "back")


def notes_of(run, word):
    return [event["text"] for event in run.events if event["event"] in ("note", "warning") and word in event["text"]]


def binary(path):
    path.write_bytes(b"rules\0\x01\xff" * 100)


def huge(path):
    path.write_text("Always say please.\n" * (10 * 1024 * 1024 // 19))


def loop(path):
    path.symlink_to("AGENTS-2.md")
    (path.parent / "AGENTS-2.md").symlink_to(path.name)


def test_broken_instructions_are_one_line_and_the_session_goes_on():
    for make, words in ((binary, "is not text"), (huge, "bytes"), (loop, "link")):
        with session() as one:
            make(one.work / "AGENTS.md")
            with one.run([say("an answer")]) as run:
                run.wait("idle")
                begin(run, "one")
                run.end()
            [note] = notes_of(run, "AGENTS.md")
            assert words in note and "\n" not in note and len(note) < 300, note
            assert run.error == "", run.error
            system = one.messages()[0][1]
            assert ("say please" in system) == (make is huge) and len(system) < 100_000, len(system)
            goes_on(one)


def test_a_wrong_configuration_is_one_line_and_the_session_goes_on_once_it_is_mended():
    with session() as one:
        path = one.folder / "config.json"
        with one.run([say("an answer")]) as run:
            run.wait("idle")
            begin(run, "one")
            run.end()
        before = (one.state / "sessions.db").read_bytes()
        for text, words in (('{"efort": 5}', "did you mean 'effort'"), ('{"effort": 5', "config.json:1"),
                            ('\0' * 100, "config.json"), ("[" * 5000, "config.json")):
            path.write_text(text)
            for task in (["--resume", "last", "go on"], ["a task", "-C", str(one.work)]):
                status, out, said = plain(one, "run", *task, "--config", str(path))
                assert status == 2 and not out and said.startswith("hearth: ") and words in said, said
                assert said.count("\n") == 1, said
        assert (one.state / "sessions.db").read_bytes() == before
        path.write_text('{"effort": 5}')
        goes_on(one, "--config", str(path))


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
