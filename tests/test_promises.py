#!/usr/bin/env python3
"""Promises that hold across the parts of a run: test_promises.py HEARTH_SCRIPTED [NAME-PART]...

What each part has tests for, seen once more where it counts: in the record, in a prompt, in the events
of the whole program. Output is that of cli_support.py.
"""
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import cli_support
import test_compaction
import test_terminal
from test_interactive import BESIDE, ENDLESS, PROGRAM, call, configured, hook, say, session

HERE = pathlib.Path(__file__).resolve().parent
FETCH = ("import urllib.request, sys\n"
         "try: print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())\n"
         "except Exception as error: print('failed', error)\n")


def tool(name, **arguments):
    return {"thinking": "", "text": "", "calls": [{"name": name, "arguments": arguments}]}


def finish(run, status=0):
    run.wait("idle", stop="answer")
    return run.end(status)


@contextlib.contextmanager
def server_beside():
    """An HTTP server of this machine's; where it is."""

    class Hello(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from outside")

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_decision_is_recorded():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [call("echo 1"), call("ls"), tool("fetch", url="https://example.org/"), say("done")]
        with one.run(turns, "--tools", "shell,fetch", "--deny", "shell:ls") as run:
            run.message("one")
            ask = run.wait("ask")
            run.send("answer", question=ask["question"], answer="no")
            finish(run)
        kept = one.select("SELECT subject, is_allowed, decider FROM decision WHERE kind = 'tool' ORDER BY number")
        assert kept == [("shell", 1, "policy"), ("shell", 0, "rule"), ("fetch", 0, "person")], kept
        assert len(one.tree()["decisions"]) == 3, one.tree()["decisions"]


def mcp(one, command, **more):
    shutil.copy(HERE / "mcp_fake.py", one.work / "server.py")
    return configured(one, mcp={"fake": dict({"command": command}, **more)})


def test_a_trusted_server_is_recorded():
    cli_support.needs_sandbox()
    with session() as one:
        options = mcp(one, ["python3", str(one.work / "server.py")], trusted=True)
        with one.run([say("done")], *options) as run:
            run.message("one")
            finish(run)
        kept = one.select("SELECT kind, subject, is_allowed, reason FROM decision")
        assert len(kept) == 1 and kept[0][:3] == ("server", "fake", 1), kept
        assert "outside of the sandbox" in kept[0][3], kept


def processes_of(one):
    """Command lines that name its folder, or the server below it, without the program itself."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if one.folder.name.encode() in words and PROGRAM.encode() not in words:
                found.append((int(entry.name), words))
    return found


def test_a_killed_host_takes_its_servers_along():
    """Also one outside of the sandbox."""
    cli_support.needs_sandbox()
    for is_trusted in (True, False):
        with session() as one:
            place = str(one.work) if is_trusted else "/workspace"
            options = mcp(one, ["python3", f"{place}/server.py", one.folder.name], trusted=is_trusted)
            with one.run([tool("mcp__fake__pid"), dict(ENDLESS, delay_us=2000)], *options, "--allow", "mcp__*") as run:
                run.message("one")
                run.wait("tool_result", status="ok")
                assert processes_of(one), is_trusted
                run.process.kill()
                run.process.wait()
                deadline = time.monotonic() + 10
                while processes_of(one):
                    assert time.monotonic() < deadline, (is_trusted, processes_of(one))
                    time.sleep(0.02)


def test_servers_and_hooks_have_the_network_that_is_theirs():
    """A server that of the run, a hook none."""
    cli_support.needs_sandbox()
    for is_listed in (True, False):
        with session(BESIDE) as one, server_beside() as here:
            (one.work / "fetch.py").write_text(FETCH)
            fetched = f'$(python3 /workspace/fetch.py http://{here}/)'
            command = ["sh", "-c", f'exec python3 /workspace/server.py "{fetched}"']
            after = hook(one, "after", f"echo the hook: {fetched}\n")
            mcp(one, command)
            options = configured(one, mcp={"fake": {"command": command}}, hooks={"after_tool": [after]})
            if is_listed:
                options += ["--set", f"network.allow={here}"]
            with one.run([tool("mcp__fake__pid"), say("done")], *options, "--allow", "mcp__*") as run:
                run.message("one")
                text = run.wait("tool_result", status="ok")["text"]
                seen, by_hook = text.split("the hook: ")
                assert ("hello from outside" in seen) == is_listed and ("failed" in seen) != is_listed, text
                assert "failed" in by_hook, text
                finish(run)


def test_read_only_holds_for_servers_and_hooks():
    cli_support.needs_sandbox()
    with session(BESIDE) as one:
        command = ["python3", "/workspace/server.py"]
        mcp(one, command)
        after = hook(one, "after", "touch /workspace/by-hook 2>&1 || true\n")
        options = configured(one, mcp={"fake": {"command": command, "read_only": ["write"]}},
                             hooks={"after_tool": [after]})
        with one.run([tool("mcp__fake__write", text="/workspace/by-server"), say("done")], *options,
                     "--policy", "read-only", "--allow", "mcp__*") as run:
            run.message("one")
            text = run.wait("tool_result")["text"]
            assert text.count("Read-only file system") == 2, text
            finish(run)
        assert os.listdir(one.work) == ["server.py"], os.listdir(one.work)


def test_no_tool_outlives_the_time_of_a_run():
    """A call of a server and a hook, as a command does (cli_support.py)."""
    cli_support.needs_sandbox()
    with session(BESIDE) as one:
        mcp(one, [])
        before = hook(one, "before", "sleep 300\n")
        servers = {"fake": {"command": ["python3", "/workspace/server.py"]}}
        for turns, hooks in (([tool("mcp__fake__slow", text="300")], {}), ([call("ls")], {"before_tool": [before]})):
            options = configured(one, mcp=servers, hooks=hooks) + ["--policy", "full", "--max-time", "4s"]
            begin = time.monotonic()
            with one.run(turns, *options) as run:
                run.message("one")
                run.wait("finished")
                assert run.process.wait(timeout=60) == 4
            assert time.monotonic() - begin < 60  # what is ended would take 300
            one.contexts.clear()


def test_what_a_budget_cuts_short_is_kept():
    """Output and files of the call that it ended, earlier turns, and the last words."""
    cli_support.needs_sandbox()
    with session() as one:
        path = one.folder / "last"
        turns = [call("echo early > a"), say("so far"), dict(call("echo half; echo half > b; sleep 300"), text="now b"), say("what I have")]
        with one.run(turns, "--max-time", "40s", "--output-last-message", str(path)) as run:
            run.message("one")
            run.wait("idle", stop="answer")
            run.message("two")
            result = run.wait("tool_result", status="timeout")
            assert result["text"].startswith("half\n"), result
            finished = run.finish(4)
            assert finished["stop"] == "time", finished
        changes = [event for event in run.events if event["event"] == "changes"][-1]
        assert [change["path"] for change in changes["files"]] == ["a", "b"], changes
        assert path.read_text() == "what I have"  # there was time left to say it
        kept = [text for role, text in one.messages() if role == "tool"]
        assert len(kept) == 2 and "half" in kept[1], kept
        assert one.hearth("sessions", "diff", "last", "--stat") == "a\t+1 -0\nb\t+1 -0\n"


def test_a_session_outlives_a_server_that_floods():
    cli_support.needs_sandbox()
    with session() as one:
        options = mcp(one, ["python3", "/workspace/server.py"]) + ["--allow", "mcp__*"]
        flood = [tool("mcp__fake__misbehave", text=kind) for kind in ("flood", "garbage_forever", "long_answer")]
        with one.run([*flood, tool("mcp__fake__echo", text="alive"), say("done")], *options) as run:
            run.message("one")
            for _ in flood:
                text = run.wait("tool_result")["text"]
                assert len(text) < 500, text
            assert "alive" in run.wait("tool_result", status="ok")["text"]
            finish(run)
        with one.run([say("back")], "--resume", "last") as run:
            run.wait("idle")
            run.message("two")
            finish(run)
        assert one.messages()[-1] == ("assistant", "back")


def test_full_asks_nothing_and_confines_all_the_same():
    cli_support.needs_sandbox()
    with session() as one, server_beside() as here:
        (one.work / "fetch.py").write_text(FETCH)
        beside = one.folder / "beside"
        beside.write_text("kept")
        turns = [call(f"python3 fetch.py http://{here}/; echo x > {beside}; cat {beside}; echo mine > made"),
                 tool("write", path=str(beside), content="x"), tool("fetch", url=f"http://{here}/"), say("done")]
        with one.run(turns, "--policy", "full", "--tools", "shell,write,fetch") as run:
            run.message("one")
            text = run.wait("tool_result")["text"]
            assert "failed" in text and "hello" not in text and "kept" not in text, text
            assert run.wait("tool_result")["status"] == "refused"
            assert "no network is allowed" in run.wait("tool_result")["text"]
            finish(run)
        assert not [event for event in run.events if event["event"] == "ask"]
        assert beside.read_text() == "kept" and (one.work / "made").read_text() == "mine\n"


def test_a_model_names_the_dialect_of_its_tools():
    source = HERE.parent / "examples" / "mini" / "model"
    with session() as one:
        model = one.folder / "model"
        shutil.copytree(source, model, copy_function=os.link if os.stat(source).st_dev == os.stat(
            one.folder).st_dev else shutil.copy)
        (model / "agent.json").unlink()
        for dialect, first in (("claude", "Bash"), ("codex", "exec_command")):
            (model / "agent.json").write_text(json.dumps({"dialect": dialect}))
            for options, wanted in (([], first), (["--dialect", "hearth"], "shell")):
                with one.run([say("done")], "--model", str(model), *options) as run:
                    run.message("one")
                    names = [each["name"] for each in run.wait("session")["tools"]]
                    assert wanted in names, (dialect, options, names)
                    finish(run)
                one.contexts.clear()


def test_what_a_configuration_sets_reaches_the_run():
    with session() as one:
        options = configured(one, effort=33, context=3000, budget={"time": "90s", "tokens": 777, "calls": 5},
                             instructions={"max_bytes": 40}, compaction={"at_percent": 31})
        (one.work / "AGENTS.md").write_text("".join(f"line {i}\n" for i in range(100)))
        with one.run([say("done")], *options) as run:
            run.message("one")
            begun = run.wait("session")
            assert (begun["effort"], begun["tokens_max"], begun["time_ms_max"]) == (33, 777, 90000), begun
            assert begun["context_max"] == 3000, begun
            run.wait("idle", stop="answer")
            run.send("command", command="budget")
            assert "of 777" in run.wait("note")["text"]
            run.end()
        system = one.messages()[0][1]
        assert "line 3" in system and "line 20" not in system, system


def system_text(one):
    with one.run([say("done")]) as run:
        run.message("one")
        tools = json.dumps(run.wait("session")["tools"])
        finish(run)
    one.contexts.clear()
    return one.messages()[0][1], tools


def test_nothing_volatile_is_at_the_head_of_a_prompt():
    with session() as one:
        def git(*words):
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=one.work,
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (one.work / "AGENTS.md").write_text("Always say please.\n")
        before = system_text(one)
        git("init", "-b", "main")
        (one.work / "new.txt").write_text("x")
        git("add", ".")
        git("commit", "-m", "a change")
        git("checkout", "-b", "other")
        assert system_text(one) == before


def test_what_a_configuration_says_of_compaction_counts():
    cli_support.needs_sandbox()
    for settings, wanted in (({"keep_turns": 1}, [3]), ({"keep_turns": 2}, [2]), ({"at_percent": 0}, [])):
        with test_compaction.World() as world:
            path = world.path / "config.json"
            path.write_text(json.dumps({"compaction": settings}))
            turns = test_compaction.reads(4) + [{"text": "Done."}]
            done = world.play(turns, "Read.", "--config", str(path))
            removed = [event["outputs_removed"] for event in done if event["event"] == "compacted"]
            assert removed == wanted, (settings, removed)


def test_a_session_whose_terminal_vanished_goes_on():
    with test_terminal.Place() as place:
        turns = [say("first"), ENDLESS]
        with test_terminal.Terminal(place, place.command(), turns) as terminal:
            terminal.wait(b"waiting | ")
            terminal.send(b"hello\r")
            terminal.wait(b"first")
            terminal.send(b"go\r")
            terminal.wait(b"againain")
            os.close(terminal.slave)
            os.close(terminal.master)
            terminal.process.wait(timeout=60)
        done = subprocess.run([*place.command("--resume", "last"), "--json", "go on"], stdin=subprocess.DEVNULL,
                              env=place.environment([say("back")]), stdout=subprocess.PIPE, timeout=60)
        assert done.returncode == 0, done
        texts = [message["text"] for turn in place.session()["agents"][0]["turns"] for message in turn["messages"]]
        assert "first" in texts and texts[-2:] == ["go on", "back"], texts


def documented_fields():
    """Of each event the words that its row of the document names."""
    rows = {}
    page = (HERE.parent / "docs" / "json-events.md").read_text()
    for table in page.split("| `event` | when | fields |\n")[1:]:  # of a run, of a swarm
        for line in table.split("\n\n")[0].splitlines()[1:]:
            cells = line.split("|")
            rows[cells[1].strip(" `")] = set(re.findall(r"`(\w+)`", cells[3]))
    return rows


def test_the_schema_of_events_is_what_their_rows_say():
    """The page and the file name the same events and fields, and what does not fit is found."""
    schema, rows = cli_support.event_schema(), documented_fields()
    kinds = {name: kind for name, kind in schema["$defs"].items() if name != "counts"}
    assert [one["$ref"] for one in schema["oneOf"]] == [f"#/$defs/{name}" for name in kinds]
    assert set(kinds) == set(rows), set(kinds) ^ set(rows)
    for name, kind in kinds.items():
        fields = set(kind["properties"]) - {"event", "agent", "turn", "elapsed_ms"}
        for part in kind["properties"].values():  # files of changes, the likeliest of a token
            fields |= set(part.get("items", {}).get("properties", []))
            fields |= set(schema["$defs"]["counts"]["properties"]) if "$ref" in part else set()
        assert fields <= rows[name], (name, fields - rows[name])
    good = {"event": "queued", "turn": 1, "text": "x", "queued": 1}
    cli_support.check_event(good)
    for wrong in ({"turn": -1}, {"turn": True}, {"turn": "1"}, {"text": None}, {"more": 1}, {"event": "que"}):
        with contextlib.suppress(AssertionError):
            cli_support.check_event({**good, **wrong})
            raise RuntimeError(wrong)
    for name in good:
        with contextlib.suppress(AssertionError, KeyError):
            cli_support.check_event({key: value for key, value in good.items() if key != name})
            raise RuntimeError(name)


def test_events_have_the_fields_that_their_rows_name():
    cli_support.needs_sandbox()
    rows = documented_fields()
    with session(BESIDE) as one:
        after = hook(one, "after", "exit 3\n")
        options = configured(one, policy="ask", hooks={"after_tool": [after]})
        turns = [call("echo one; sleep 0.3; echo two"), call("echo 2"), say("done"), say("more")]
        with one.run(turns, *options, "--allow", "shell:echo one") as run:
            run.message("one")
            run.message("queued")
            for answer in ("always", "no"):
                ask = run.wait("ask")
                run.send("answer", question=ask["question"], answer=answer)
            finish(run)
        events = list(run.events)
        with one.run([say("again")], "--resume", "last") as run:
            run.wait("idle")
            run.message("two")
            finish(run)
        seen = set()
        for event in events + run.events:
            name = event["event"]
            unknown = set(event) - rows.get(name, set()) - {"event", "turn"}
            assert name in rows and not unknown, (name, unknown)
            assert ("turn" in event) == (name not in ("session", "changes", "finished")), event
            seen.add(name)
        wanted = {"session", "turn", "reasoning", "content", "usage", "tool_call", "tool_output", "tool_result",
                  "ask", "decision", "hook", "idle", "queued", "user", "resumed", "changes", "finished"}
        assert wanted <= seen, wanted - seen


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
