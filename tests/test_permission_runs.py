#!/usr/bin/env python3
"""What an agent may do in whole runs: test_permission_runs.py HEARTH_SCRIPTED [NAME-PART]...

Questions and their answers, rules, policies, dialects. Helpers are those of test_interactive.py.
"""
import json
import os
import sys

import cli_support
from test_interactive import WAIT, call, say, session


def test_questions_are_answered_by_the_person():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [call("echo 1 > a"), call("echo 2 > b"), call("echo 3 > c"), call("echo 4 > d"),
                 say("done")]
        with one.run(turns, "--policy", "ask") as run:
            run.message("one")
            ask = run.wait("ask")
            run.send("answer", question=ask["question"], answer="yes")
            assert run.wait("decision")["verdict"] == "allow"
            run.wait("tool_result", status="ok")
            ask = run.wait("ask")
            run.send("answer", question=ask["question"], answer="no", text="not that one")
            assert run.wait("decision")["verdict"] == "deny"
            refused = run.wait("tool_result", status="refused")
            assert "not that one" in refused["text"], refused
            ask = run.wait("ask")
            run.send("answer", question=ask["question"] - 1, answer="yes")  # too late for that one
            run.send("interrupt")
            assert run.wait("tool_result")["status"] == "cancelled"
            run.wait("idle", stop="interrupt")
            run.message("go on")
            ask = run.wait("ask")
            run.process.stdin.close()  # nobody is there any more
            assert run.wait("decision")["by"] == "default"
            run.finish(0)
        assert sorted(os.listdir(one.work)) == ["a"], os.listdir(one.work)
        deciders = one.select("SELECT is_allowed, decider FROM decision ORDER BY number")
        assert deciders == [(1, "person"), (0, "person"), (0, "default")], deciders


def test_always_adds_a_rule_for_the_session():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [call("touch a"), call("touch a"), call("touch b; rm a"), say("done")]
        with one.run(turns, "--policy", "ask") as run:
            run.message("one")
            ask = run.wait("ask")
            assert ask["always"], ask
            run.send("answer", question=ask["question"], answer="always")
            run.wait("tool_result", status="ok")
            run.wait("tool_result", status="ok")  # the same again
            ask = run.wait("ask")
            run.send("answer", question=ask["question"], answer="no")
            run.wait("idle", stop="answer")
            run.end()
        assert os.listdir(one.work) == ["a"]


def test_headless_what_would_be_asked_is_refused():
    cli_support.needs_sandbox()
    with session() as one:
        turns = [call("touch a"), call("touch b"), say("done")]
        with one.run(turns, "--policy", "ask", "--allow", "shell:touch a") as run:
            run.message("one")
            run.process.stdin.close()
            assert run.wait("decision")["by"] == "rule"
            refused = run.wait("decision")
            assert refused["by"] == "default" and refused["verdict"] == "deny", refused
            run.finish(0)
        assert os.listdir(one.work) == ["a"]


def test_rules_hold_under_every_dialect():
    cli_support.needs_sandbox()
    patch = "*** Begin Patch\n*** Add File: ok\n+a\n*** Add File: secret\n+b\n*** End Patch\n"
    cases = {
        "claude": [("Bash", {"command": "true; touch x"}), ("Write", {"file_path": "secret", "content": "x"}),
                   ("Bash", {"command": "echo fine"})],
        "codex": [("exec_command", {"cmd": "true; touch x"}), ("apply_patch", {"input": patch}),
                  ("exec_command", {"cmd": "echo fine"})],
    }
    for dialect, calls in cases.items():
        with session() as one:
            turns = [{"thinking": "", "text": "", "calls": [{"name": name, "arguments": arguments}]}
                     for name, arguments in calls] + [say("done")]
            with one.run(turns, "--dialect", dialect, "--deny", "shell:touch *",
                         "--deny", "write:secret", "--deny", "apply_patch:secret") as run:
                run.message("one")
                for _ in range(2):
                    result = run.wait("tool_result")
                    assert result["status"] == "refused", (dialect, result)
                    assert "--deny" in result["text"] or "rule" in result["text"], result
                assert "fine" in run.wait("tool_result", status="ok")["text"]
                run.wait("idle", stop="answer")
                run.end()
            assert os.listdir(one.work) == [], dialect
            with one.run([turns[2], say("done")], "--resume", "last") as run:  # it keeps its names
                run.wait("idle")
                run.message("two")
                assert "fine" in run.wait("tool_result", status="ok")["text"]
                run.wait("idle", stop="answer")
                run.end()


def test_tools_for_other_agents_are_not_of_one_agent():
    with session() as one:
        turns = [{"thinking": "", "text": "", "calls": [{"name": "spawn", "arguments": {"task": "x"}}]},
                 say("done")]
        with one.run(turns, "--tools", "all") as run:
            run.message("one")
            refused = run.wait("tool_result", status="refused")["text"]
            assert "unknown tool: spawn; the tools are: " in refused and "merge" not in refused, refused
            run.wait("idle", stop="answer")
            run.end()
        declared = [tool["name"] for tool in json.loads(one.select("SELECT tools FROM agent")[0][0])]
        assert "fetch" in declared and not {"spawn", "fork", "wait", "merge"} & set(declared), declared
        with one.run(turns, "--tools", "spawn,merge") as run:
            assert run.process.wait(timeout=WAIT) == 2


def test_what_may_not_be_read_is_not_found_either():
    cli_support.needs_sandbox()
    for dialect, name, arguments in (("hearth", "grep", {"pattern": "key"}),
                                     ("claude", "Grep", {"pattern": "key", "path": "/workspace"}),
                                     ("codex", "grep_files", {"pattern": "key", "path": "./"})):
        with session() as one:
            (one.work / "secrets").mkdir()
            (one.work / "secrets" / "a").write_text("key 1\n")
            (one.work / "b").write_text("key 2\n")
            turns = [{"thinking": "", "text": "", "calls": [{"name": name, "arguments": arguments}]},
                     {"thinking": "", "text": "", "calls": [
                         {"name": name, "arguments": dict(arguments, path="secrets/a")}]},
                     say("done")]
            with one.run(turns, "--dialect", dialect, "--tools", "grep,todo", "--deny",
                         "read:secrets/**", "--deny", "*:private/**") as run:
                run.message("one")
                text = run.wait("tool_result", status="ok")["text"]
                assert "secrets" not in text and "b" in text, text
                assert "(1 left out by a rule)" in text, text
                assert run.wait("tool_result")["status"] == "refused"
                run.wait("idle", stop="answer")
                run.end()


def test_read_only_writes_nothing():
    cli_support.needs_sandbox()
    with session() as one:
        write = {"thinking": "", "text": "", "calls": [
            {"name": "write", "arguments": {"path": "a", "content": "x"}}]}
        turns = [write, call("touch b"), say("done")]
        with one.run(turns, "--policy", "read-only", "--allow", "shell", "--allow", "write") as run:
            run.message("one")
            refused = run.wait("tool_result")
            assert refused["status"] == "refused" and "policy read-only" in refused["text"], refused
            held = run.wait("tool_result")  # a rule allows commands: the mount holds them
            assert "Read-only file system" in held["text"], held
            run.wait("idle", stop="answer")
            run.end()
        assert os.listdir(one.work) == []


def test_configuration_and_options_decide():
    cli_support.needs_sandbox()
    with session() as one:
        config = one.folder / "config.json"
        config.write_text(json.dumps({
            "effort": 33, "budget": {"calls": 1},
            "rules": [{"tool": "shell", "pattern": "touch *", "action": "deny"}]}))
        with one.run([call("touch a"), say("done")], "--config", str(config)) as run:
            run.message("one")
            assert run.wait("session")["effort"] == 33
            assert run.wait("decision")["verdict"] == "deny"
            run.wait("idle", stop="answer")
            run.end()
        config.write_text('{"efort": 33}')
        with one.run([], "--config", str(config)) as run:
            assert run.process.wait(timeout=WAIT) == 2
        assert "efort" in run.error and "effort" in run.error, run.error


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
