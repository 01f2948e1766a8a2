#!/usr/bin/env python3
"""MCP servers of a run: test_servers.py HEARTH_SCRIPTED [NAME-PART]...

They start beside the prompt, and the first turn waits for them. Helpers are those of test_interactive.py.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import cli_support
from test_interactive import BESIDE, PROGRAM, WAIT, configured, call, say, session

NEVER = {"command": ["sleep", "1000"]}  # starts, and says nothing
TOO_LONG = 20  # seconds; a server that is waited for takes 30


def echo():
    return {"thinking": "", "text": "", "calls": [
        {"name": "mcp__fake__echo", "arguments": {"text": "hello"}}]}


def with_fake(one, before="", **servers):
    """Options with the server "fake", which first runs a command, and others."""
    shutil.copy(pathlib.Path(__file__).with_name("mcp_fake.py"), one.work / "server.py")
    fake = ["sh", "-c", before + " exec python3 /workspace/server.py"]
    return configured(one, mcp=dict({"fake": {"command": fake, "read_only": ["echo"]}}, **servers))


def test_a_server_that_never_answers_does_not_delay_the_prompt():
    cli_support.needs_sandbox()
    with session() as one:
        began = time.monotonic()
        with one.run([say("an answer")], *configured(one, mcp={"never": NEVER})) as run:
            run.wait("idle", stop="")
            assert time.monotonic() - began < TOO_LONG
            assert not [event for event in run.events if event["event"] == "warning"], run.events
            run.message("one")
            assert "waiting for the server never" in run.wait("note")["text"]
            run.send("interrupt")
            assert "without the server never" in run.wait("warning")["text"]
            run.wait("idle", stop="answer")
            assert time.monotonic() - began < TOO_LONG
            run.end()
        assert one.messages()[1:] == [("user", "one"), ("assistant", "an answer")]


def test_leaving_does_not_wait_for_a_server():
    cli_support.needs_sandbox()
    with session() as one:
        began = time.monotonic()
        with one.run([], *configured(one, mcp={"never": NEVER})) as run:
            run.wait("idle")
            run.end()
        assert time.monotonic() - began < TOO_LONG


def test_the_first_turn_waits_for_a_slow_server():
    cli_support.needs_sandbox()
    with session() as one:
        options = with_fake(one, "sleep 2;")
        with one.run([echo(), say("done"), say("more")], *options, "--allow", "mcp__*") as run:
            run.message("one")  # while it starts
            run.message("two")
            names = [tool["name"] for tool in run.wait("session")["tools"]]
            assert "mcp__fake__echo" in names, names
            assert any("waiting for the server fake" in event.get("text", "") for event in run.events)
            assert "hello" in run.wait("tool_result", status="ok")["text"]
            run.wait("idle", stop="answer")
            run.end()
        with one.run([say("again")], "--resume", "last", *options) as run:
            run.wait("idle")
            run.message("three")
            run.wait("idle", stop="answer")
            run.end()
        users = [text for role, text in one.messages() if role == "user"]
        assert users == ["one", "two", "three"], users


def headless(one, turns, *options):
    script = one.folder / "script.json"
    script.write_text(json.dumps({"turns": turns}))
    return subprocess.Popen(
        [PROGRAM, "run", "a task", "--json", "--state", str(one.state), "-C", str(one.work), *options],
        env=dict(os.environ, HEARTH_SCRIPT=str(script)), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True)


def test_a_task_waits_for_its_servers_until_it_is_stopped_or_out_of_time():
    cli_support.needs_sandbox()
    with session() as one:
        run = headless(one, [echo(), say("done")], *with_fake(one, "sleep 1;"), "--allow", "mcp__*")
        out, _ = run.communicate(timeout=WAIT)
        assert run.returncode == 0 and "hello" in out, out
        run = headless(one, [say("done")], *configured(one, mcp={"never": NEVER}), "--max-time", "1s")
        out, _ = run.communicate(timeout=TOO_LONG)
        assert run.returncode == 4, out
        run = headless(one, [say("done")], *configured(one, mcp={"never": NEVER}))
        for line in run.stdout:
            if "waiting for the server" in line:
                run.send_signal(signal.SIGINT)
                break
        out, _ = run.communicate(timeout=TOO_LONG)
        assert run.returncode == 130, out


def test_a_prompt_that_servers_make_too_long_ends_the_run():
    cli_support.needs_sandbox()
    with session() as one:
        options = with_fake(one)
        with one.run([say("done")], *options, script={"context_max": 1000}) as run:
            run.message("one")
            finished = run.finish(3)
            assert finished["stop"] == "tool" and "prompt has" in finished["detail"], finished
        assert not one.select("SELECT * FROM session")


def test_tools_of_a_server_are_called_when_they_are_allowed():
    cli_support.needs_sandbox()
    with session() as one:
        shutil.copy(pathlib.Path(__file__).with_name("mcp_fake.py"), one.work / "server.py")
        options = configured(one, mcp={
            "fake": {"command": ["python3", "/workspace/server.py"], "read_only": ["pid"]},
            "gone": {"command": ["/nowhere/server"]}})
        echo = {"thinking": "", "text": "", "calls": [
            {"name": "mcp__fake__echo", "arguments": {"text": "hello"}}]}
        pid = {"thinking": "", "text": "", "calls": [{"name": "mcp__fake__pid", "arguments": {}}]}
        with one.run([pid, echo, echo, say("done")], *options) as run:
            assert "gone" in run.wait("warning")["text"]
            assert "fake" in run.wait("note")["text"]
            run.message("one")
            names = [tool["name"] for tool in run.wait("session")["tools"]]
            assert names[:4] == ["shell", "read", "edit", "write"], names
            assert "mcp__fake__echo" in names
            assert run.wait("tool_result")["status"] == "ok"  # the user says that it only reads
            assert not [event for event in run.events if event["event"] == "ask"], run.events
            ask = run.wait("ask")
            run.send("answer", question=ask["question"], answer="no")
            run.wait("tool_result", status="refused")
            ask = run.wait("ask")
            run.send("answer", question=ask["question"], answer="yes")
            assert "hello" in run.wait("tool_result", status="ok")["text"]
            run.wait("idle", stop="answer")
            run.end()


def test_what_a_server_needs_is_said_and_shown():
    cli_support.needs_sandbox()
    with session(BESIDE) as one:
        beside = one.folder / "beside"
        beside.mkdir()
        shutil.copy(pathlib.Path(__file__).with_name("mcp_fake.py"), beside / "server.py")
        npm = "for line in 'code EAI_AGAIN' 'A complete log of this run: /x'; do echo npm error $line >&2; done; exit 1"
        options = configured(one, mcp={
            "far": {"command": ["sh", "-c", npm]},
            "near": {"command": ["python3", str(beside / "server.py")], "directories": [str(beside)]}})
        echo = {"thinking": "", "text": "", "calls": [{"name": "mcp__near__echo", "arguments": {"text": "hello"}}]}
        with one.run([echo, say("done")], *options, "--allow", "mcp__near__*") as run:
            text = run.wait("warning")["text"]
            assert "far" in text and "npm error code EAI_AGAIN" in text and "network.allow" in text, text
            run.message("one")
            assert "hello" in run.wait("tool_result", status="ok")["text"]
            run.wait("idle", stop="answer")
            run.end()


def test_files_are_put_back_while_a_server_is_there():
    cli_support.needs_sandbox()
    with session() as one:
        shutil.copy(pathlib.Path(__file__).with_name("mcp_fake.py"), one.work / "server.py")
        options = configured(one, mcp={
            "fake": {"command": ["python3", "/workspace/server.py"], "read_only": ["echo"]}})
        echo = {"thinking": "", "text": "", "calls": [
            {"name": "mcp__fake__echo", "arguments": {"text": "hello"}}]}
        turns = [call("echo 1 > a"), say("done"), echo, say("done")]
        with one.run(turns, *options, "--allow", "mcp__*") as run:
            run.message("one")
            run.wait("idle", stop="answer")
            assert (one.work / "a").exists()
            run.send("command", command="undo")
            assert "put back" in run.wait("note")["text"]
            assert not (one.work / "a").exists()
            run.message("two")
            assert "hello" in run.wait("tool_result", status="ok")["text"]  # it was started again
            run.wait("idle", stop="answer")
            run.end()


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
