#!/usr/bin/env python3
"""hearth config, and a run under files of a configuration: test_config_cli.py HEARTH_SCRIPTED [NAME-PART]..."""
import json
import os
import pty
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import cli_support

HEARTH = os.path.abspath(sys.argv[1])


class Place:
    """A workspace and a user's directory of the configuration."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="hearth-config-", dir="/var/tmp")  # commands see no /tmp
        self.path = Path(self.folder.name)
        self.work, self.user = self.path / "work", self.path / "user" / "hearth"
        self.script = self.path / "script.json"
        self.script.write_text('{"turns": []}')
        (self.work / ".hearth").mkdir(parents=True)
        self.user.mkdir(parents=True)
        return self

    def __exit__(self, *unused):
        self.folder.cleanup()

    def write(self, user=None, project=None):
        for folder, value in ((self.user, user), (self.work / ".hearth", project)):
            if value is not None:
                (folder / "config.json").write_text(value if isinstance(value, str) else json.dumps(value))

    def hearth(self, *arguments):
        known = {"XDG_CONFIG_HOME": str(self.path / "user"), "HOME": str(self.path), "HEARTH_SCRIPT": str(self.script)}
        return subprocess.run([HEARTH, *arguments], cwd=self.work, stdin=subprocess.DEVNULL, capture_output=True,
                              env={**os.environ, **known}, timeout=300)

    def run(self, turns, *options):
        """The events of a run without anybody to ask."""
        self.script.write_text(json.dumps({"turns": turns + [{"text": "done"}]}))
        done = self.hearth("run", "--json", "--state", str(self.path / "state"), *options, "task")
        assert done.returncode == 0, done
        return [cli_support.event_of(line) for line in done.stdout.decode().splitlines()]


def shell(command):
    return {"calls": [{"name": "shell", "arguments": {"command": command}}]}


def texts(events, event):
    return [one.get("text", "") for one in events if one["event"] == event]


def test_text_shows_value_and_place():
    with Place() as place:
        place.write({"effort": 20, "rules": [{"tool": "shell", "pattern": "git *", "action": "allow"}]},
                    "{\n\"policy\": \"ask\",\n\"mcp\": {\"a\": {\"command\": [\"b\"]}}}")
        done = cli_support.check(place.hearth("config", "--set", "budget.calls=5"), 0)
        lines = [" ".join(line.split()) for line in done.stdout.decode().splitlines()]
        user, project = place.user / "config.json", place.work / ".hearth" / "config.json"
        assert f"effort 20 {user}:1" in lines, lines
        assert f"policy \"ask\" {project}:2" in lines, lines
        assert f"rules allow shell git * {user}:1" in lines, lines
        assert "budget.calls 5 --set" in lines and "backend \"auto\" default" in lines, lines
        assert any(line.startswith(f"# {project}:3: 'mcp' does not count") for line in lines), lines
        done = cli_support.check(place.hearth("config", "--no-project"), 0)
        assert b"does not count" not in done.stdout


def test_every_command_finds_the_state_of_the_configuration():
    cli_support.needs_sandbox()
    with Place() as place:
        place.write({"state": "~/elsewhere"})
        place.script.write_text(json.dumps({"turns": [{"text": "done"}]}))
        cli_support.check(place.hearth("run", "a task of mine"), 0)
        assert (place.path / "elsewhere" / "sessions.db").exists()
        for command, word in (("list", b"a task of mine"), ("show", b"a task of mine"), ("prune", b"1 workspaces")):
            assert word in cli_support.check(place.hearth("sessions", command), 0).stdout
        assert b"elsewhere" in place.hearth("doctor").stdout
        cli_support.check(place.hearth("sessions", "list", "--state", str(place.path / "nowhere")), 0)
        place.write({"stat": "x"})
        done = place.hearth("sessions", "list")
        assert done.returncode == 5 and b"'stat'" in done.stderr and done.stderr.count(b"\n") == 1, done
        cli_support.check(place.hearth("sessions", "list", "--state", str(place.path / "elsewhere")), 0)


def test_json_is_one_object_without_secrets():
    with Place() as place:
        place.write({"mcp": {"a": {"command": ["b"], "env": {"TOKEN": "sesame"}}}, "trust": [str(place.work)]})
        done = cli_support.check(place.hearth("config", "--json"), 0)
        assert b"sesame" not in done.stdout
        shown = json.loads(done.stdout)
        assert shown["trusted"] is True and shown["project_file"] is None
        assert shown["values"]["mcp"]["origin"] == {
            "source": "user", "name": str(place.user / "config.json"), "line": 1}
        page = (cli_support.ROOT / "docs" / "config.md").read_text().split("| key | value |")[1].split("\n\n")[0]
        rows = [line.split("|")[1] for line in page.splitlines()[2:]]
        documented = [name.replace("mcp.NAME", "mcp") for row in rows for name in re.findall("`([^`]*)`", row)]
        assert list(shown["values"])[0] == "model"
        assert sorted(shown["values"]) == sorted(documented), set(shown["values"]) ^ set(documented)
        assert json.loads(place.hearth("config", "policy").stdout) == "workspace-write"


def test_a_terminal_sees_escapes_of_what_a_project_wrote():
    with Place() as place:
        place.write(project={"rules": [{"tool": "shell", "pattern": "a\u202eb", "action": "deny"}]})
        assert "a\u202eb" in place.hearth("config").stdout.decode()  # in a pipe as it is
        ours, theirs = pty.openpty()
        known = {"XDG_CONFIG_HOME": str(place.path / "user"), "HOME": str(place.path), "HEARTH_SCRIPT": str(place.script)}
        shown = b""
        with subprocess.Popen([HEARTH, "config"], cwd=place.work, stdin=subprocess.DEVNULL, stdout=theirs,
                              env={**os.environ, **known}) as process:
            os.close(theirs)
            while True:
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # nobody has the other end any more
                    break
                if not piece:
                    break
                shown += piece
            assert process.wait() == 0
        os.close(ours)
        assert b"a\\u202eb" in shown and "\u202e".encode() not in shown, shown


def test_path_says_where_files_are():
    with Place() as place:
        assert place.hearth("config", "path").stdout.decode() == f"{place.user}/config.json\n"
        assert place.hearth("config", "path", "--project").stdout.decode() == f"{place.work}/.hearth/config.json\n"


def test_wrong_ones_are_one_line():
    with Place() as place:
        for user, project, status, words in (
                ({"polcy": "ask"}, None, 2, "'polcy' is not a key: did you mean 'policy'"),
                ("{", None, 2, "JSON ends"),
                ({}, {"state": "x"}, 2, "no place in a project's file")):
            place.write(user, project if project is not None else {})
            done = cli_support.check(place.hearth("config"), status, err=words)
            assert done.stdout == b"" and done.stderr.count(b"\n") == 1, done
        place.write({}, {})
        cli_support.check(place.hearth("config", "nonsense"), 2, err="'nonsense' is not a key")
        cli_support.check(place.hearth("config", "--set", "efort=1"), 2, err="did you mean 'effort'")
        cli_support.check(place.hearth("config", "--config", "missing"), 2, err="No such file")


def test_a_file_that_is_none_is_one_fault():
    """Whatever stands in the file's place: status 2 and one line that names it, wherever it lies."""
    def link(target):
        return lambda path: path.symlink_to(target)

    def socket_at(path):
        with socket.socket(socket.AF_UNIX) as one:
            here = os.getcwd()
            os.chdir(path.parent)  # its name may be at most 108 bytes
            one.bind(path.name)
            os.chdir(here)

    kinds = {
        "fifo": lambda path: os.mkfifo(path),
        "directory": lambda path: path.mkdir(),
        "socket": socket_at,
        "large": lambda path: path.write_bytes(b" " * (2 << 20)),
        "binary": lambda path: path.write_bytes(bytes(range(256))),
        "utf-8": lambda path: path.write_bytes(b'{"model": "\xff"}'),
        "c1": lambda path: path.write_text('{"model": "a\x9b"}'),
        "utf-16": lambda path: path.write_text("{}", encoding="utf-16"),
        "empty": lambda path: path.write_bytes(b""),
        "deep": lambda path: path.write_text("[" * 1000),
        "device": link("/dev/null"),
        "loop": link("config.json"),
    }
    if os.geteuid() != 0:
        kinds["mode"] = lambda path: (path.write_text("{}"), path.chmod(0))
    for name, make in kinds.items():
        for where in ("user", "project", "named"):
            with Place() as place:
                folder = {"user": place.user, "project": place.work / ".hearth", "named": place.path}[where]
                make(folder / "config.json")
                named = ["--config", str(folder / "config.json")] if where == "named" else []
                for command in (["config"], ["run", "--state", str(place.path / "state"), "task"]):
                    done = cli_support.check(place.hearth(*command, *named), 2, err="config.json|/dev/null")
                    assert done.stderr.count(b"\n") == 1, (name, where, done)


def test_an_error_shows_no_character_that_deceives():
    with Place() as place:
        place.write({"\u202eeffort": 1, "a": 2})
        done = cli_support.check(place.hearth("config"), 2, err=r"'\\u202eeffort' is not a key")
        assert "\u202e".encode() not in done.stderr


def test_a_project_narrows_what_a_run_may_do():
    cli_support.needs_sandbox()
    with Place() as place:
        place.write({}, {"rules": [{"tool": "shell", "pattern": "rm *", "action": "deny"}]})
        (place.work / "kept").write_text("x")
        events = place.run([shell("ls; rm kept"), shell("echo {} > .hearth/config.json; true"),
                            {"calls": [{"name": "write", "arguments": {"path": ".hearth/config.json", "content": "{}"}}]}])
        results = texts(events, "tool_result")
        assert "not allowed" in results[0] and ".hearth/config.json:1" in results[0], results
        assert "Read-only file system" in results[1], results
        assert "protected" in results[2], results
        assert (place.work / "kept").exists()
        assert "deny" in (place.work / ".hearth" / "config.json").read_text()


def test_skills_of_the_user_are_listed_and_readable():
    cli_support.needs_sandbox()
    with Place() as place:
        skill = place.user / "skills" / "moo"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: moo\ndescription: how to moo\n---\nSay moo.\n")
        (place.user / "config.json").write_text("{}")
        events = place.run([shell(f"cat {skill}/SKILL.md; ls {place.user}; touch {skill}/x")])
        result = texts(events, "tool_result")[0]
        assert "Say moo." in result and "Read-only" in result, result
        assert "config.json" not in result, result


def test_a_trusted_project_s_file_counts_as_it_was_accepted():
    cli_support.needs_sandbox()
    with Place() as place:
        file = place.work / ".hearth" / "config.json"
        (place.work / ".hearth").rmdir()
        place.write({"trust": [str(place.work)], "policy": "ask"})
        allow = json.dumps({"rules": [{"tool": "shell", "action": "allow"}]})
        plant = f"mkdir -p .hearth && echo '{allow}' > .hearth/config.json"
        state = ["--state", str(place.path / "state")]
        # A command that the person let run makes a file; it does not count in the next run.
        events = place.run([shell(plant)], "--allow", "shell:mkdir *", "--policy", "workspace-write")
        assert file.exists(), events
        events = place.run([shell("touch x")])
        assert any("is not what was accepted" in note for note in texts(events, "note")), events
        assert not (place.work / "x").exists()
        shown = json.loads(cli_support.check(place.hearth("config", "--json", *state), 0).stdout)
        assert shown["trusted"] is False and len(shown["notes"]) == 1, shown
        # It counts once the person says so, until it changes again.
        cli_support.check(place.hearth("config", "accept", *state), 0, err="accepted: ")
        assert not texts(place.run([shell("touch x")]), "note") and (place.work / "x").exists()
        place.write(project=json.loads(allow) | {"effort": 20})
        events = place.run([shell("touch y")])
        assert any("is not what was accepted" in note for note in texts(events, "note")), events
        assert not (place.work / "y").exists()
        # One that is there at first is taken as it is, and that is said; elsewhere nothing is recorded.
        events = place.run([shell("touch y")], "--state", str(place.path / "other"))
        assert any("is trusted as it is now" in note for note in texts(events, "note")), events
        assert (place.work / "y").exists()
        place.write({})
        cli_support.check(place.hearth("config", "accept", *state), 3, err="is not listed under")
        assert len(list((place.path / "state" / "trusted").iterdir())) == 1


def test_instructions_leave_a_small_context_its_room():
    cli_support.needs_sandbox()
    with Place() as place:
        for name in "AGENTS.md", "CLAUDE.md":
            (place.work / name).write_text(f"{name} one two three\n" * 300000)
        for number in range(60):
            skill = place.work / ".hearth" / "skills" / f"s{number}"
            skill.mkdir(parents=True)
            (skill / "SKILL.md").write_text(f"---\nname: s{number}\ndescription: {'long ' * 200}\n---\n")
        events = place.run([], "--set", "context=2000")
        notes = [note for note in texts(events, "note") if "quarter of the context of 2000 tokens" in note]
        assert len(notes) == 1 and "instructions are cut to" in notes[0], texts(events, "note")
        assert "skills are not listed" in "\n".join(texts(events, "note"))


def hook(place, name, script, timeout_ms=20000):
    path = place.work / ".hearth" / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return {"command": f".hearth/{name}", "timeout_ms": timeout_ms}


def test_bad_hooks_are_notes_and_the_run_goes_on():
    cli_support.needs_sandbox()
    bad = [("hang", "exec sleep 600\n", "stopped after 500 ms"), ("flood", "cat /dev/zero\n", "too much"),
           ("crash", "kill -SEGV $$\n", "signalled"), ("missing", None, "does not exist")]
    for name, script, words in bad:
        with Place() as place:
            entry = hook(place, name, script or "", 500 if name == "hang" else 20000)
            if script is None:
                (place.work / ".hearth" / name).unlink()
            place.write({"trust": [str(place.work)]}, {"hooks": {"before_tool": [{**entry, "tool": "write"}],
                                                                 "after_tool": [entry], "stop": [entry]}})
            events = place.run([{"calls": [{"name": "write", "arguments": {"path": "a", "content": "x"}}]}, shell("ls")])
            results = texts(events, "tool_result")
            assert "could not do its work" in results[0] and not (place.work / "a").exists(), results
            assert "[exit 0]" in results[1], results
            notes = [(one["hook"], one["text"]) for one in events if one["event"] == "hook"]
            assert [note[0] for note in notes] == ["before_tool", "after_tool", "stop"], notes
            assert all(words in note[1] and "\n" not in note[1] for note in notes), notes
            early = [text for text in texts(events, "warning") if words in text]  # known before anything runs
            assert len(early) == (3 if script is None else 0), events
            place.write({})  # no longer trusted: they do not count, and that is said
            events = place.run([{"calls": [{"name": "write", "arguments": {"path": "a", "content": "x"}}]}])
            assert (place.work / "a").exists() and not [one for one in events if one["event"] == "hook"], events
            assert sum("does not count" in text for text in texts(events, "note")) == 3, events


def test_a_key_a_group_or_a_server_is_shown():
    with Place() as place:
        place.write({"budget": {"calls": 7}, "mcp": {"a": {"command": ["b"]}, "c": {"command": ["d"]}}})
        assert json.loads(place.hearth("config", "budget").stdout) == {"time": None, "tokens": None, "calls": 7}
        assert json.loads(place.hearth("config", "mcp.c").stdout)["command"] == ["d"]
        assert list(json.loads(place.hearth("config", "mcp").stdout)) == ["a", "c"]
        for name, near in (("efort", "effort"), ("budget.tim", "budget.time"), ("mcp.d", None), ("budge.", None)):
            done = cli_support.check(place.hearth("config", name), 2, err=f"'{name}' is not a key")
            assert near is None or f"did you mean '{near}'?" in done.stderr.decode(), done


def test_text_says_what_counts_without_a_file():
    with Place() as place:
        done = cli_support.check(place.hearth("config", "--state", "../state"), 0).stdout.decode()
        lines = {line.split()[0]: line for line in done.splitlines() if not line.startswith(("#", " "))}
        assert f'"{place.path}/state"  --state' in lines["state"] and "(no limit)" in lines["budget.time"], done
        assert "null" not in done and '"default"' not in done, done
        place.write({"budget": {"time": "9s"}})
        assert "9000ms" in place.hearth("config").stdout.decode()
        skills = [line for line in done.splitlines() if "/skills" in line]
        assert len(skills) == 4 and all(line.index('"') == 28 for line in skills), skills


def test_a_rule_for_no_tool_is_an_error():
    with Place() as place:
        for rule, near in (("Bash(git *)", "shell:PATTERN"), ("shel:git *", "shell"), ("mcp__x__*", "server 'x'")):
            for option in ("--deny", "--allow"):
                done = cli_support.check(place.hearth("run", option, rule, "--state", str(place.path / "state"), "x"), 2,
                                      err=f"{option}: 'rules'")
                assert near in done.stderr.decode(), done
        place.write({"rules": [{"tool": "Bash(git *)", "action": "deny"}]})
        cli_support.check(place.hearth("run", "x"), 2, err="config.json:1: 'rules' names no tool: 'Bash")
        assert not (place.path / "state").exists()


def test_a_rule_by_a_name_of_any_dialect_counts_and_is_named():
    cli_support.needs_sandbox()
    with Place() as place:
        for dialect in ("hearth", "claude"):
            calls = {"calls": [{"name": "shell" if dialect == "hearth" else "Bash", "arguments": {"command": "ls"}}]}
            events = place.run([calls], "--dialect", dialect, "--allow", "read", "--deny", "Bash:ls")
            assert "denied by the rule shell ls (--deny)" in texts(events, "tool_result")[0], events
        events = place.run([shell("ls")], "--deny", "write", "--allow", "shell:ls", "--policy", "read-only")
        reasons = [one["reason"] for one in events if one["event"] == "decision" and one.get("tool") == "shell"]
        assert "[exit 0]" in texts(events, "tool_result")[0], events
        assert all("(--allow)" in reason for reason in reasons), events


def test_places_are_one_by_any_name():
    cli_support.needs_sandbox()
    with Place() as place:
        (place.path / "link").symlink_to(place.path)
        for n, state in enumerate(("../state", "../link/./state", str(place.path / "work" / ".." / "state"))):
            place.script.write_text(json.dumps({"turns": [shell(f"echo {n} > {n}"), {"text": "done"}]}))
            cli_support.check(place.hearth("run", "--state", state, "task"), 0)
            done = cli_support.check(place.hearth("sessions", "undo", "--state", state), 0)
            assert not (place.work / str(n)).exists(), done
        assert len(list((place.path / "state" / "snapshots").iterdir())) == 1
        listed = cli_support.check(place.hearth("sessions", "list", "--state", "../state", "--json"), 0).stdout
        assert listed.count(b'"task":') == 3, listed


def test_a_file_that_cannot_be_written_is_refused_at_the_start():
    with Place() as place:
        for path, words in (("/nonexistent/x", "No such file or directory"), (".", "is a directory"),
                            (str(place.script / "x"), "Not a directory")):
            done = place.hearth("run", "--output-last-message", path, "--state", str(place.path / "state"), "task")
            cli_support.check(done, 2, err=f"--output-last-message {path}.*{words}")
        assert not (place.path / "state").exists()
        cli_support.needs_sandbox()
        place.run([], "--output-last-message", "last")
        assert (place.work / "last").read_text() == "done"


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
