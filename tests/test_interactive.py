#!/usr/bin/env python3
"""The interactive agent as a program drives it: test_interactive.py HEARTH_SCRIPTED [NAME-PART]...

The whole program with a scripted engine, messages and answers as JSON lines on standard input. Every
context that the engine is given is written down; in each test every one must begin with the one before
it and what was sampled since. Output is that of cli_support.py.
"""
import contextlib
import http.server
import json
import os
import pathlib
import pty
import queue
import random
import resource
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

import cli_support

PROGRAM = os.path.abspath(sys.argv[1])
BESIDE = pathlib.Path(PROGRAM).resolve().parent  # what lies in /tmp is never shown inside
WAIT = 60  # seconds for an event; a busy machine is slow


def say(text, **more):
    return dict({"thinking": "hm", "text": text}, **more)


def call(*commands, **more):
    calls = [{"name": "shell", "arguments": {"command": command}} for command in commands]
    return dict({"thinking": "hm", "text": "", "calls": calls}, **more)


ENDLESS = say("again", repeat=True, delay_us=1000)


class Session:
    """One state directory and workspace; runs of the program in it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.state = self.folder / "state"
        self.work = self.folder / "work"
        self.work.mkdir()
        self.contexts = []  # of all runs, as lists of ids

    @contextlib.contextmanager
    def run(self, turns, *arguments, script=None):
        path = self.folder / "script.json"
        log = self.folder / "log"
        log.write_text("")
        path.write_text(json.dumps(dict(script or {}, turns=turns)))
        environment = dict(os.environ, HEARTH_SCRIPT=str(path), HEARTH_SCRIPT_LOG=str(log))
        command = [PROGRAM, "run", "--interactive", "--json", "--state", str(self.state)]
        if "--resume" not in arguments:
            command += ["-C", str(self.work)]
        run = Run(subprocess.Popen(
            command + list(arguments), env=environment, stdin=subprocess.PIPE, cwd=cli_support.here(self.state),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        try:
            yield run
        finally:
            run.close()
            self.contexts += [[int(word) for word in line.split(":")[1].split()]
                              for line in log.read_text().splitlines()]
        self.check_prefixes()

    def check_prefixes(self):
        """The record holds the tokens that the model saw; each context begins with the one before."""
        for before, after in zip(self.contexts, self.contexts[1:]):
            assert after[:len(before)] == before, (len(before), len(after))
        if self.contexts:
            recorded = []
            for turn in self.tree()["agents"][0]["turns"]:
                for run in turn["token_runs"]:
                    recorded[run["position"]:] = run.get("ids", [])
            assert recorded[:len(self.contexts[-1])] == self.contexts[-1]

    def hearth(self, *arguments):
        done = subprocess.run(
            [PROGRAM, *arguments, "--state", str(self.state)], stdout=subprocess.PIPE, check=True,
            cwd=cli_support.here(self.state), env=dict(os.environ, HEARTH_SCRIPT=str(self.folder / "script.json")))
        return done.stdout.decode()

    def tree(self):
        [[newest]] = self.select("SELECT id FROM session ORDER BY created_ms DESC, number DESC LIMIT 1")
        return json.loads(self.hearth("sessions", "show", newest, "--json", "--tokens"))

    def select(self, query):
        with contextlib.closing(sqlite3.connect(self.state / "sessions.db")) as database:
            return database.execute(query).fetchall()

    def messages(self):
        """(role, text) of all messages in the record."""
        return [(message["role"], message["text"]) for turn in self.tree()["agents"][0]["turns"]
                for message in turn["messages"]]


class Run:
    def __init__(self, process):
        self.process = process
        self.events = []
        self.waiting = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.waiting.put(json.loads(line))
        self.waiting.put(None)

    def send(self, kind, **fields):
        self.process.stdin.write(json.dumps(dict(fields, type=kind)).encode() + b"\n")
        self.process.stdin.flush()

    def message(self, text):
        self.send("message", text=text)

    def wait(self, name, **fields):
        """The next event of that name with these fields; what came before it is in self.events."""
        while True:
            event = self.waiting.get(timeout=WAIT)
            assert event is not None, f"the run ended before '{name}': {self.events[-3:]}"
            cli_support.check_event(event)
            self.events.append(event)
            if event["event"] == name and all(event.get(key) == fields[key] for key in fields):
                return event

    def end(self, status=0):
        """No more input; the last event."""
        self.process.stdin.close()
        return self.finish(status)

    def finish(self, status):
        finished = self.wait("finished")
        assert self.process.wait(timeout=WAIT) == status, (self.process.returncode, finished)
        return finished

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.reader.join()
        self.process.stdout.close()
        self.error = self.process.stderr.read().decode()
        self.process.stderr.close()


@contextlib.contextmanager
def session(place=None):
    with tempfile.TemporaryDirectory(prefix="hearth-interactive-", dir=place) as folder:
        yield Session(folder)


# ---- messages ------------------------------------------------------------------------------------


def test_messages_are_answered_one_after_the_other():
    with session() as one:
        with one.run([say("first answer"), say("second answer")]) as run:
            assert run.wait("idle")["stop"] == ""
            run.message("one")
            assert run.wait("session")["task"] == "one"
            idle = run.wait("idle")
            assert idle["stop"] == "answer", idle
            assert not [event for event in run.events if event["event"] == "user"]
            run.message("two")
            assert run.wait("user")["text"] == "two"
            run.wait("idle")
            finished = run.end()
            assert finished["stop"] == "quit" and finished["turns"] == 2, finished
        assert one.messages()[1:] == [
            ("user", "one"), ("assistant", "first answer"),
            ("user", "two"), ("assistant", "second answer")]
        assert one.tree()["status"] == "done"
        assert len(one.contexts) == 2


def test_files_that_other_programs_act_upon_are_named_when_they_change():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([call("echo a > notes", "echo a > .envrc"), say("done")]) as run:
            run.message("go")
            run.wait("tool_result")
            assert ".envrc" in run.wait("warning")["text"]
            run.wait("idle")
            run.end()
        assert sum(event["event"] == "warning" for event in run.events) == 1, run.events


def test_messages_while_it_works_come_before_the_next_turn():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([call("sleep 1; echo a"), say("done")]) as run:
            run.message("go")
            run.wait("tool_call")
            run.message("and be quick")
            run.message("please")
            assert run.wait("queued")["queued"] == 1
            assert run.wait("queued")["queued"] == 2
            assert run.wait("user")["text"] == "and be quick"
            assert run.wait("user")["text"] == "please"
            run.wait("idle")
            run.end()
        roles = [role for role, _ in one.messages()]
        assert roles == ["system", "user", "assistant", "tool", "user", "user", "assistant"], roles


def test_a_message_during_the_answer_goes_on_without_waiting():
    with session() as one:
        with one.run([say("slow answer", wait_ms=500), say("second")]) as run:
            run.message("one")
            run.wait("turn")
            run.message("two")
            run.wait("queued")
            run.wait("user")
            assert run.wait("idle")["stop"] == "answer"
            assert len([e for e in run.events if e["event"] == "idle"]) == 2  # first and last
            run.end()


def test_lines_of_text_are_messages_and_their_end_ends_the_run():
    with session() as one:
        path = one.folder / "script.json"
        path.write_text(json.dumps({"turns": [say("yes", wait_ms=200), say("two")]}))
        done = subprocess.run(
            [PROGRAM, "run", "--interactive", "--state", str(one.state), "-C", str(one.work)],
            input=b"first line\nsecond line\n", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(os.environ, HEARTH_SCRIPT=str(path)), timeout=WAIT)
        assert done.returncode == 0, done.stderr
        texts = [text for role, text in one.messages() if role == "user"]
        assert texts == ["first line", "second line"], texts


def lines(one, turns, text, *arguments, terminal=False):
    """A run that is given lines of text, at once; or line by line by a program on a dumb terminal."""
    path = one.folder / "script.json"
    path.write_text(json.dumps({"turns": turns}))
    command = [PROGRAM, "run", "--interactive", "--state", str(one.state), "-C", str(one.work),
               "--max-turn-tokens", "16000", "--max-repeats", "off", *arguments]
    environment = dict(os.environ, HEARTH_SCRIPT=str(path), TERM="dumb")
    if not terminal:
        done = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=environment, timeout=WAIT)
        assert done.returncode == 0, done
        return done.stdout.decode()
    keyboard, screen = pty.openpty()
    with subprocess.Popen(command, stdin=screen, stdout=screen, stderr=subprocess.PIPE, env=environment) as run:
        os.close(screen)
        seen = ""
        for wanted, line in text:
            while wanted not in seen:
                if not select.select([keyboard], [], [], WAIT)[0]:
                    run.kill()
                    raise AssertionError((wanted, seen))
                seen += os.read(keyboard, 4096).decode()
            seen = seen[seen.index(wanted) + len(wanted):]
            os.write(keyboard, line.encode() + b"\n")
        with contextlib.suppress(OSError):
            while more := os.read(keyboard, 4096):
                seen += more.decode()
        os.close(keyboard)
        assert run.wait(WAIT) == 0
    return seen


def test_lines_of_text_are_answers_and_commands_too():
    cli_support.needs_sandbox()
    command = "".join(f"echo {number} >> n\n" for number in range(30)) + "echo " + "x" * 600 + "the end"
    turns = [call(command), call("echo no > m"), say("done"), say("second")]
    text = "go\nwhat?\ny\nn not that\n/diff\n/undo\nand more\n/\n/hepl\n/help\n/quit\nnever"
    with session() as one:
        shown = lines(one, turns, text, "--policy", "ask")
        assert all(f"echo {number} >> n\n" in shown for number in range(30)), shown
        assert "the end\n" in shown and shown.count("? may shell run?") == 2, shown
        assert shown.count("y: once, ") == 3, shown  # with each question, and for what is none
        assert "+29\n" in shown and "put back" in shown and not list(one.work.iterdir()), shown
        assert "/hepl; did you mean /help?" in shown and "/rewind N" in shown, shown
        users = [text for role, text in one.messages() if role == "user"]
        assert users[0] == "go" and users[-1] == "and more" and "never" not in users, users
        tools = [text for role, text in one.messages() if role == "tool"]
        assert "not that" in tools[1], tools


def test_the_end_of_the_lines_refuses_what_is_asked():
    cli_support.needs_sandbox()
    with session() as one:
        shown = lines(one, [call("echo a > n"), say("done")], "go", "--policy", "ask")
        assert "nobody is there to be asked" in shown and not list(one.work.iterdir()), shown


def test_a_dumb_terminal_answers_and_commands():
    cli_support.needs_sandbox()
    turns = [call("echo a > n"), call("echo b > m"), say("done")]
    with session() as one:
        talk = [("", "go"), ("v: view", "y"), ("v: view", "n"), ("ended with an answer", "/sessions"),
                (" turns  go", "/quit")]
        shown = lines(one, turns, talk, "--policy", "ask", terminal=True)
        assert [path.name for path in one.work.iterdir()] == ["n"], shown


def test_nothing_is_recorded_before_the_first_message():
    with session() as one:
        with one.run([]) as run:
            run.wait("idle")
            finished = run.end()
            assert finished["stop"] == "quit" and finished["session"] == "", finished
        assert "0 sessions" in one.hearth("sessions", "list") or \
            one.hearth("sessions", "list", "--json").strip() in ("", "[]")


def test_input_that_cannot_be_read_is_said():
    with session() as one:
        with one.run([say("yes")]) as run:
            run.wait("idle")
            run.process.stdin.write(b"{nonsense\n{\"type\": \"dance\"}\n\n")
            run.process.stdin.flush()
            run.wait("note")
            assert "dance" in run.wait("note")["text"]
            run.message("x" * (1 << 20) + "y")
            assert "message is 1 to" in run.wait("note")["text"]
            run.message("one")
            run.wait("session")
            run.wait("idle")
            run.end()


# ---- interrupts ----------------------------------------------------------------------------------


def test_interrupt_ends_a_generation_and_the_next_message_goes_on():
    with session() as one:
        with one.run([ENDLESS, say("fine")]) as run:
            run.message("one")
            run.wait("content")
            run.send("interrupt")
            idle = run.wait("idle")
            assert idle["stop"] == "interrupt", idle
            run.message("shorter")
            assert run.wait("idle")["stop"] == "answer"
            assert run.end()["exit_status"] == 0
        assert [role for role, _ in one.messages()][1:] == ["user", "assistant", "user", "assistant"]


def test_interrupt_before_the_first_token():
    with session() as one:
        with one.run([say("never", wait_ms=60000), say("fine"), say("more")]) as run:
            run.message("one")
            run.wait("turn")
            run.send("interrupt")
            assert run.wait("idle")["stop"] == "interrupt"
            run.message("two")
            assert run.wait("idle")["stop"] == "answer"
            run.end()
        before = one.contexts[-1]
        with one.run([say("more")], "--resume", "last") as run:
            run.wait("idle")
            run.message("three")
            run.wait("idle", stop="answer")
            run.end()
        assert one.contexts[-1][:len(before)] == before


def test_interrupt_with_a_message_waiting_gives_it_at_once():
    with session() as one:
        with one.run([ENDLESS, say("fine")]) as run:
            run.message("one")
            run.wait("content")
            run.message("no, do that")
            run.wait("queued")
            run.send("interrupt")
            run.wait("user", text="no, do that")
            assert run.wait("idle")["stop"] == "answer"
            run.end()


def test_interrupted_calls_get_results_that_say_so():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([call("sleep 100", "echo never"), say("fine")]) as run:
            run.message("one")
            run.wait("tool_call")
            run.send("interrupt")
            assert run.wait("tool_result")["status"] == "cancelled"
            assert run.wait("idle")["stop"] == "interrupt"
            run.message("two")
            run.wait("idle", stop="answer")
            run.end()
        tools = [text for role, text in one.messages() if role == "tool"]
        assert len(tools) == 2 and tools[1].startswith("not run: "), tools
        before = one.contexts[-1]
        with one.run([say("more")], "--resume", "last") as run:
            run.wait("idle")
            run.message("three")
            run.wait("idle", stop="answer")
            run.end()
        assert one.contexts[-1][:len(before)] == before


def test_second_interrupt_ends_the_run():
    with session() as one:
        with one.run([ENDLESS]) as run:
            run.message("one")
            run.wait("content")
            run.send("interrupt")
            run.send("interrupt")
            finished = run.finish(130)
            assert finished["stop"] == "interrupt", finished
        with one.run([]) as run:
            run.wait("idle")
            run.send("interrupt")
            assert "once more" in run.wait("note")["text"]
            run.send("interrupt")
            assert run.finish(0)["stop"] == "quit"


def test_signals_interrupt_and_end():
    with session() as one:
        with one.run([ENDLESS, ENDLESS]) as run:
            run.message("one")
            run.wait("content")
            run.process.send_signal(signal.SIGINT)
            assert run.wait("idle")["stop"] == "interrupt"
            run.message("two")
            run.wait("content")
            run.message("unsent")
            run.wait("queued")
            run.process.send_signal(signal.SIGTERM)
            warning = run.wait("warning")
            assert "unsent" in warning["text"], warning
            assert run.finish(130)["detail"] == "by SIGTERM"
        assert one.tree()["status"] == "stopped"


# ---- commands ------------------------------------------------------------------------------------


def test_effort_changes_with_the_next_turn():
    with session() as one:
        with one.run([say("a"), say("b"), {"raw": "c, without thinking"}]) as run:
            run.wait("idle")
            run.message("one")
            run.wait("idle", stop="answer")
            run.send("command", command="effort", text="20")
            run.wait("note")
            run.message("two")
            run.wait("idle", stop="answer")
            run.send("command", command="effort", text="off")
            run.wait("note")
            run.message("three")
            run.wait("idle", stop="answer")
            run.send("command", command="effort", text="loud")
            assert "loud" in run.wait("note")["text"]
            run.end()
        turns = one.tree()["agents"][0]["turns"]
        assert [turn["sampler"]["effort"] for turn in turns[1:]] == [20, 0], turns[1]["sampler"]
        texts = [text for role, text in one.messages() if role == "user"]
        assert texts[1:] == ["Reasoning effort from now on: 20 of 100.", "two", "three"], texts
        assert one.messages()[-1] == ("assistant", "c, without thinking")


def test_quit_while_it_works():
    with session() as one:
        with one.run([ENDLESS]) as run:
            run.message("one")
            run.wait("content")
            run.send("command", command="quit")
            assert run.finish(0)["stop"] == "quit"
        assert one.tree()["status"] == "stopped"


# ---- live output ---------------------------------------------------------------------------------


def test_live_output_comes_while_the_tool_runs():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([call("echo early; sleep 1; printf 'l\\303'; sleep 1; printf '\\244te'"),
                      say("done")]) as run:
            run.message("one")
            assert run.wait("tool_output")["text"] == "early\n"
            assert not [event for event in run.events if event["event"] == "tool_result"]
            run.wait("tool_result")
            text = "".join(e["text"] for e in run.events if e["event"] == "tool_output")
            assert text == "early\nl\u00e4te", repr(text)
            run.wait("idle")
            run.end()


def test_a_cancelled_call_does_not_end_later_ones():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([call("sleep 100"), call("echo alive"), say("done")]) as run:
            run.message("one")
            run.wait("tool_call")
            run.send("interrupt")
            run.wait("idle", stop="interrupt")
            run.message("two")
            assert "alive" in run.wait("tool_result", status="ok")["text"]
            run.wait("idle", stop="answer")
            run.end()


# ---- hooks, servers ------------------------------------------------------------------------------


def hook(one, name, script):
    folder = one.folder / "config" / "hooks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return {"command": [str(path)], "tool": "*", "timeout_ms": 20000}


def configured(one, **config):
    path = one.folder / "config" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config))
    return ["--config", str(path)]


def test_hooks_refuse_remark_and_want_more():
    cli_support.needs_sandbox()
    with session(BESIDE) as one:
        before = hook(one, "before", "if grep -q forbidden; then echo not that >&2; exit 2; fi\n")
        after = hook(one, "after", "echo seen by a hook\n")
        stop = hook(one, "stop", "if grep -q enough; then exit 0; fi; echo more please >&2; exit 2\n")
        del stop["tool"]
        options = configured(one, hooks={
            "before_tool": [before], "after_tool": [after], "stop": [stop]})
        turns = [call("echo forbidden"), call("echo fine"), say("an answer"), say("it is enough")]
        with one.run(turns, *options) as run:
            run.message("one")
            decision = run.wait("decision")
            assert decision["by"] == "hook" and decision["verdict"] == "deny", decision
            refused = run.wait("tool_result", status="refused")
            assert "not that" in refused["text"], refused
            remarked = run.wait("tool_result", status="ok")
            assert remarked["text"].endswith("seen by a hook"), remarked
            run.wait("hook")
            run.wait("idle", stop="answer")
            run.end()
        texts = [text for role, text in one.messages() if role == "user"]
        kept = one.select("SELECT is_allowed, decider FROM decision WHERE kind = 'tool' ORDER BY number")
        assert kept == [(0, "hook"), (1, "policy")], kept
        assert len(texts) == 2 and texts[1] == "Checked before the end: hook stop: more please", texts
        assert one.messages()[-1] == ("assistant", "it is enough")


def test_a_stop_hook_that_never_has_enough_is_left():
    cli_support.needs_sandbox()
    with session(BESIDE) as one:
        stop = hook(one, "stop", "echo more please >&2; exit 2\n")
        del stop["tool"]
        with one.run([say(str(i)) for i in range(9)], *configured(one, hooks={"stop": [stop]})) as run:
            run.message("one")
            run.wait("idle", stop="answer")
            run.end()
        assert one.messages()[-1] == ("assistant", "3"), one.messages()


def test_an_interrupt_ends_a_hook():
    cli_support.needs_sandbox()
    with session(BESIDE) as one:
        before = hook(one, "before", "sleep 100\n")
        with one.run([call("echo 1"), say("done")],
                     *configured(one, hooks={"before_tool": [before]})) as run:
            run.message("one")
            run.wait("tool_call")
            run.send("interrupt")
            assert run.wait("tool_result")["status"] == "cancelled"
            run.wait("idle", stop="interrupt")
            run.end()


# ---- project, network ----------------------------------------------------------------------------


def test_instructions_are_part_of_the_system_text():
    with session() as one:
        with one.run([say("yes")]) as run:
            run.message("one")
            run.wait("idle", stop="answer")
            run.end()
        plain = one.messages()[0][1]
    with session() as one:
        (one.work / "AGENTS.md").write_text("Always say please.\n")
        os.mkfifo(one.work / "CLAUDE.md")
        with one.run([say("yes")]) as run:
            assert "CLAUDE.md" in run.wait("note")["text"]
            run.message("one")
            run.wait("idle", stop="answer")
            run.end()
        role, text = one.messages()[0]
        assert role == "system" and text.startswith(plain) and "Always say please." in text
        (one.work / "AGENTS.md").write_text("Something else.\n")  # the session has what it had
        with one.run([say("more")], "--resume", "last") as run:
            run.wait("idle")
            run.message("two")
            run.wait("idle", stop="answer")
            run.end()
        assert one.messages()[0][1] == text


def test_the_network_is_what_the_list_says():
    cli_support.needs_sandbox()

    class Hello(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from outside")

        def log_message(self, *_):
            pass

    fetch = ("import urllib.request, sys\n"
             "try: print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())\n"
             "except Exception as error: print('failed', error)")
    with session() as one, http.server.HTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (one.work / "fetch.py").write_text(fetch)
        here = f"127.0.0.1:{server.server_port}"
        turns = [call(f"python3 fetch.py http://{here}/"), call("python3 fetch.py http://example.org/"),
                 say("done")]
        with one.run(turns, "--set", f"network.allow={here}") as run:
            run.message("one")
            assert "hello from outside" in run.wait("tool_result")["text"]
            assert "failed" in run.wait("tool_result")["text"]
            run.wait("idle", stop="answer")
            run.end()
        kept = one.select("SELECT subject, is_allowed FROM decision WHERE kind = 'network'")
        assert kept == [(here, 1), ("example.org:80", 0)], kept
        with one.run([call(f"python3 fetch.py http://{here}/"), say("done")], "--resume", "last") as run:
            run.wait("idle")
            run.message("two")
            assert "failed" in run.wait("tool_result")["text"]  # nothing is allowed by itself
            run.wait("idle", stop="answer")
            run.end()
        server.shutdown()


def test_a_worktree_leaves_the_workspace_alone():
    cli_support.needs_sandbox()
    with session() as one:
        (one.work / "a").write_text("old")
        with one.run([call("echo new > a"), say("done")], "--worktree") as run:
            run.message("one")
            copy = pathlib.Path(run.wait("session")["workspace"])
            run.wait("idle", stop="answer")
            run.end()
        assert (one.work / "a").read_text() == "old"
        assert (copy / "a").read_text() == "new\n" and copy.parent.parent == one.state
        with one.run([call("cat a"), say("done")], "--resume", "last") as run:
            run.wait("idle")
            run.message("two")
            assert run.wait("tool_result")["text"].startswith("new")
            run.wait("idle", stop="answer")
            run.end()


# ---- faults --------------------------------------------------------------------------------------


def test_a_workspace_that_is_deleted_ends_the_run_in_one_line():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([say("a"), call("echo hi > x")]) as run:
            run.message("one")
            run.wait("idle", stop="answer")
            shutil.rmtree(one.work)
            run.message("two")
            finished = run.finish(3)
            assert finished["stop"] == "tool" and "No such file" in finished["detail"], finished
        assert run.error.count("\n") == 1, run.error
        one.work.mkdir()
        with one.run([say("back")], "--resume", "last") as run:
            run.wait("idle")
            run.message("three")
            run.wait("idle", stop="answer")
            run.end()


def test_a_record_that_cannot_be_written_ends_the_run_in_one_line():
    cli_support.needs_sandbox()
    with session() as one:
        path = one.folder / "script.json"
        path.write_text(json.dumps({"turns": [call(f"echo {i} {'x' * 200}") for i in range(300)]}))
        limit = 400 << 10  # no file grows beyond, as on a full disk
        done = subprocess.run(
            [PROGRAM, "run", "task", "--json", "--state", str(one.state), "-C", str(one.work),
             "--cache", "off", "--max-turns", "400"],
            env=dict(os.environ, HEARTH_SCRIPT=str(path)), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=2 * WAIT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        assert done.returncode == 5 and done.stderr.count(b"\n") == 1, done.stderr
        with one.run([say("back")], "--resume", "last") as run:
            run.wait("idle")
            run.message("go on")
            run.wait("idle", stop="answer")
            run.end()
        assert one.messages()[-1] == ("assistant", "back")


# ---- ends ----------------------------------------------------------------------------------------


def test_killed_anywhere_a_session_goes_on():
    cli_support.needs_sandbox()
    for event in ("session", "turn", "content", "tool_call", "tool_result", "idle"):
        with session() as one:
            turns = [call("echo x >> file"), say("done", delay_us=2000)]
            with one.run(turns) as run:
                run.wait("idle")
                run.message("one")
                run.wait(event)
                run.process.kill()
            one.contexts.clear()  # a turn that was cut is sampled again, or encoded again
            with one.run([say("back")], "--resume", "last") as run:
                run.wait("idle")
                run.message("two")
                idle = run.wait("idle", stop="answer")
                assert idle, event
                run.end()
            users = [text for role, text in one.messages() if role == "user"]
            assert users[0] == "one" and users[-1] == "two", (event, users)


def kill_at(one, random, calls):
    """Starts a run of `calls` calls that each write a line, and kills it somewhere; what it said."""
    turns = [call(f"echo {i} >> log") for i in range(calls)] + [say("done", delay_us=500)]
    with one.run(turns) as run:
        run.message("one")
        seen = random.randrange(1, 25 * calls)
        for _ in range(seen):
            event = run.waiting.get(timeout=WAIT)
            if event is None or event["event"] == "idle" and event["stop"] == "answer":
                break
            run.events.append(event)
        time.sleep(random.random() * 0.02)
        run.process.kill()
        run.process.wait()
    return [event for event in run.events if event]


def test_killed_at_random_nothing_that_was_said_is_lost():
    cli_support.needs_sandbox()
    seed = int(os.environ.get("HEARTH_SEED", "0")) or random.randrange(1, 1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(int(os.environ.get("HEARTH_KILLS", "6"))):
        with session() as one:
            events = kill_at(one, chance, 6)
            if not any(event["event"] == "session" for event in events):
                continue
            results = [event for event in events if event["event"] == "tool_result"]
            finished, started = one.select(
                "SELECT count(*) FILTER (WHERE status <> 0), count(*) FROM call")[0]
            # A result is shown when its call has ended, and recorded before the model sees it.
            assert finished >= len(results) - 1, (finished, len(results))
            log = one.work / "log"
            lines = log.read_text().splitlines() if log.exists() else []
            assert finished <= len(lines) <= started <= finished + 1, (finished, started, lines)
            one.contexts.clear()
            with one.run([say("back")], "--resume", "last") as run:
                run.wait("idle")
                run.message("two")
                run.wait("idle", stop="answer")
                run.end()
            tools = [text for role, text in one.messages() if role == "tool"]
            assert len(tools) >= finished, (tools, finished)
            assert (log.read_text().splitlines() if log.exists() else []) == lines


def test_a_time_budget_ends_it_while_it_waits():
    with session() as one:
        with one.run([say("a")], "--max-time", "3s") as run:
            run.message("one")
            run.wait("idle", stop="answer")
            finished = run.finish(4)
            assert finished["stop"] == "time", finished


def test_a_budget_of_calls_leaves_a_turn_to_answer():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [call("echo 1"), call("echo 2", "echo 3", "echo 4"), say("an answer")]
        with one.run(turns, "--max-calls", "2") as run:
            run.message("one")
            assert run.wait("idle", stop="answer")
            run.end()
        tools = [text for role, text in one.messages() if role == "tool"]
        assert tools[0].endswith("[budget left: 1 calls]"), tools
        assert tools[1].endswith("[budget left: 0 calls; answer now]"), tools
        assert [text.startswith("not run: the budget") for text in tools[2:]] == [True, True], tools


def test_a_budget_of_calls_that_is_ignored_ends_the_run():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [call("echo 1"), call("echo 2"), call("echo 3")]
        with one.run(turns, "--max-calls", "1") as run:
            run.message("one")
            assert run.finish(4)["stop"] == "calls"


def test_the_last_message_is_a_file():
    with session() as one:
        path = one.folder / "last"
        path.write_text("old")
        with one.run([say("first"), say("the last")], "--output-last-message", str(path)) as run:
            run.message("one")
            run.wait("idle", stop="answer")
            run.message("two")
            run.wait("idle", stop="answer")
            run.end()
        assert path.read_text() == "the last"
        assert sorted(p.name for p in one.folder.iterdir() if "last" in p.name) == ["last"]
        path.unlink()  # where nothing is left to do, it is that of the record
        done = subprocess.run([PROGRAM, "run", "--resume", "last", "--state", str(one.state), "--output-last-message",
                               str(path)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=one.work, timeout=WAIT,
                              env=dict(os.environ, HEARTH_SCRIPT=str(one.folder / "script.json")))
        assert done.returncode == 0 and b"nothing is left" in done.stderr, done
        assert path.read_text() == "the last"


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
