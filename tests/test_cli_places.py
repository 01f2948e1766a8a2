#!/usr/bin/env python3
"""The program beside runs: test_cli_places.py HEARTH [NAME-PART]...

Sessions that are not there or damaged, the doctor, tools and the sandbox alone, the live view, an installed tree.
"""
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import time

from cli_support import GREEDY, HEARTH, MINI, ROOT, Scratch, Skipped, check, hearth, main, needs_sandbox


def test_sessions_without_a_record():
    with Scratch() as scratch:
        check(hearth("sessions", "list", "--state", scratch.state), 0, out="^no sessions\n$")
        assert check(hearth("sessions", "list", "--json", "--state", scratch.state), 0).stdout == b""
        check(hearth("sessions", "show", "--state", scratch.state), 5, err="no sessions")
        assert not os.path.exists(scratch.state)


def test_sessions_show_names_what_it_cannot_find():
    with Scratch() as scratch:
        scratch.demo()
        scratch.run("x", *GREEDY, "--max-tokens", "1")
        check(hearth("sessions", "show", "ffffffff", "--state", scratch.state), 5, err="ffffffff")
        check(hearth("sessions", "show", "0", "--state", scratch.state), 5, err="^hearth: ")


def test_damaged_database_is_refused_and_left_alone():
    with Scratch() as scratch:
        os.mkdir(scratch.state, 0o700)
        database = pathlib.Path(scratch.state) / "sessions.db"
        database.write_bytes(b"no database at all" * 1000)
        before = database.read_bytes()
        check(scratch.run("x"), 5, err="^hearth: ")
        check(hearth("sessions", "list", "--state", scratch.state), 5, err="^hearth: ")
        check(hearth("doctor", "--state", scratch.state), 3, out="bad   state")
        assert database.read_bytes() == before


def test_doctor_says_whether_a_run_would_work():
    with Scratch() as scratch:
        good = hearth("doctor", "--state", scratch.state, "--json")
        found = json.loads(good.stdout)
        assert good.returncode == (0 if found["would_work"] else 3)
        subjects = {finding["subject"] for finding in found["findings"]}
        assert subjects >= {"sandbox", "processor", "memory", "model", "state", "terminal", "cuda", "cache"}
        check(hearth("doctor", "--state", scratch.state, "--model", str(scratch.path)), 3,
              out="bad   model")


def test_doctor_accepts_a_database_of_an_older_version():
    with Scratch() as scratch:
        os.mkdir(scratch.state, 0o700)
        with sqlite3.connect(f"{scratch.state}/sessions.db") as database:
            database.executescript((ROOT / "tests/data/sessions/version-1.sql").read_text())
        database.close()
        done = hearth("doctor", "--state", scratch.state)
        assert b"of an older version, the next run brings it up" in done.stdout, done.stdout
        assert b"bad   state" not in done.stdout, done.stdout


def test_sessions_of_an_older_version_are_refused_with_the_remedy():
    needs_sandbox()
    with Scratch() as scratch:
        os.mkdir(scratch.state, 0o700)
        with sqlite3.connect(f"{scratch.state}/sessions.db") as database:
            database.executescript((ROOT / "tests/data/sessions/version-1.sql").read_text())
        database.close()
        before = pathlib.Path(scratch.state, "sessions.db").read_bytes()
        for words in ["list"], ["show", "last"]:
            check(hearth("sessions", *words, "--state", scratch.state), 5,
                  err="schema version 1 and needs .*; the next 'hearth run' .*brings it up")
        assert pathlib.Path(scratch.state, "sessions.db").read_bytes() == before
        scratch.demo()
        scratch.run("x", *GREEDY, "--max-turns", "1")
        listed = hearth("sessions", "list", "--state", scratch.state)
        assert listed.returncode == 0 and len(listed.stdout.splitlines()) >= 2, listed


def test_tool_call_goes_through_the_sandbox():
    needs_sandbox()
    with Scratch() as scratch:
        work = str(scratch.work)
        check(hearth("tool", "call", "shell", '{"command": "echo hi"}', "-C", work), 0,
              out=r"^hi\n\[exit 0\]\n$")
        check(hearth("tool", "call", "write", '{"path": "a", "content": "x"}', "-C", work), 0,
              out="ok: wrote a")
        check(hearth("tool", "call", "read", '{"path": "a"}', "-C", work), 0, out="^x\n$")
        check(hearth("tool", "call", "read", '{"path": "../b"}', "-C", work), 1, out="error")
        check(hearth("tool", "call", "fly", "{}", "-C", work), 1, out="fly")
        check(hearth("tool", "call", "shell", "{", "-C", work), 1, out="error")
        value = json.loads(hearth("tool", "call", "shell", '{"command": "exit 3"}', "-C", work,
                                  "--json").stdout)
        assert value["command_exit_status"] == 3, value


def test_tool_list_is_what_a_prompt_declares():
    declared = json.loads(hearth("tool", "list", "--json", "--tools", "shell,read,edit,write").stdout)
    trained = json.loads((MINI / "default-prompt.json").read_text())["tools"]
    assert declared == trained
    names = [tool["name"] for tool in json.loads(
        hearth("tool", "list", "--json", "--dialect", "claude", "--tools", "all").stdout)]
    assert "Bash" in names and "shell" not in names, names
    check(hearth("tool", "list", "--dialect", "latin"), 2, err="hearth, claude or codex")
    check(hearth("tool", "list", "--tools", "fly"), 2, err="there are shell")


def test_sandbox_passes_the_exit_status_on():
    needs_sandbox()
    with Scratch() as scratch:
        work = str(scratch.work)
        check(hearth("sandbox", "run", "-C", work, "--", "sh", "-c", "echo out; exit 7"), 7, out="out")
        check(hearth("sandbox", "run", "-C", work, "--max-time", "1", "--", "sleep", "60"), 124)
        check(hearth("sandbox", "file", "write", work, "f", text="text"), 0)
        check(hearth("sandbox", "file", "read", work, "f"), 0, out="^text$")
        check(hearth("sandbox", "file", "read", work, "/etc/passwd"), 1)


# ---- terminal, installation ----------------------------------------------------------------------


STATUS_MARK = " | effort "  # of every status line, long or short


def tmux_screen(command, width, done, environment=""):
    """Runs a shell command in a tmux of its own; returns the last screen and all status lines."""
    if shutil.which("tmux") is None:
        raise Skipped("tmux is not installed")
    socket = f"hearth-test-{os.getpid()}"
    tmux = ["tmux", "-L", socket, "-f", "/dev/null"]
    started = subprocess.run(
        [*tmux, "new-session", "-d", "-x", str(width), "-y", "200", "sh", "-c",
         f"{environment} {command}; echo; echo status $?; sleep 600"], stderr=subprocess.PIPE)
    if started.returncode != 0:
        raise Skipped("tmux does not start: " + started.stderr.decode().strip())
    seen = set()
    try:
        deadline = time.monotonic() + 120
        while True:
            screen = subprocess.run([*tmux, "capture-pane", "-p", "-e"],
                                    stdout=subprocess.PIPE).stdout.decode()
            seen |= {line for line in screen.splitlines() if STATUS_MARK in line}
            if done in screen:
                return screen, seen
            assert time.monotonic() < deadline, screen
            time.sleep(0.02)
    finally:
        subprocess.run([*tmux, "kill-server"])


def test_live_view_fits_a_terminal_of_80_columns():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        prompt = task["prompt"].replace("`", "")
        command = (f"{HEARTH} run '{prompt}' -C {scratch.work} --state {scratch.state}"
                   f" --temperature 0 --effort 50 --max-time 5m")
        screen, status_lines = tmux_screen(command, 80, "status 0")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", screen)
        assert "done: the model ended with an answer" in plain, plain
        assert "\x1b[2m" in screen, "thinking is not dimmed"
        assert STATUS_MARK not in plain, "the status line is still there"
        assert status_lines, "no status line was seen"
        for line in status_lines:
            text = re.sub(r"\x1b\[[0-9;]*m", "", line)
            assert len(text) < 80 and "reused" in text, line
            assert re.search(r"\| \d:\d\d( left)? \|", text), line  # of --max-time
        # Nothing that was streamed is lost or doubled by the redrawing.
        joined = re.sub(r"\s+|~ ", "", plain)
        assert joined.count(re.sub(r"\s+", "", "Run the tests to see the failure.")) == 1, plain


def test_no_color_means_no_colour():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        prompt = task["prompt"].replace("`", "")
        command = (f"{HEARTH} run '{prompt}' -C {scratch.work} --state {scratch.state}"
                   f" --temperature 0 --effort 50")
        screen, _ = tmux_screen(command, 100, "status 0", "NO_COLOR=1")
        assert "\x1b[" not in screen, screen


def test_installed_tree_can_be_moved():
    build = pathlib.Path(HEARTH).parent.parent
    if not os.access(build, os.W_OK):
        raise Skipped("cmake --install writes a list into the build folder, which is not ours")
    with Scratch() as scratch:
        done = subprocess.run(["cmake", "--install", str(build), "--prefix", str(scratch.path / "a")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check(done, 0)
        os.rename(scratch.path / "a", scratch.path / "b")
        program = str(scratch.path / "b" / "bin" / "hearth")
        listed = subprocess.run([program, "doctor", "--state", scratch.state],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert f"{scratch.path}/b/share/hearth/mini" in listed.stdout.decode(), listed
        assert (scratch.path / "b" / "share" / "man" / "man1" / "hearth.1").is_file()
        if listed.returncode == 0:
            called = subprocess.run(
                [program, "tool", "call", "shell", '{"command": "echo moved"}', "-C",
                 str(scratch.work)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            check(called, 0, out="moved")


if __name__ == "__main__":
    sys.exit(main(globals()))
