#!/usr/bin/env python3
"""Every tool of every dialect, once, in whole runs: test_every_tool.py HEARTH_SCRIPTED [NAME-PART]...

What a tool does has tests of its own (test_tools_*.c); here each is called by a model, recorded and shown to it, and
every context begins with the one before, a resume included (test_interactive.py looks at that after each run).
"""
import re
import shutil
import struct
import sys
import zlib

import cli_support
from test_commands import begin
from test_interactive import configured, say, session
from test_promises import server_beside, tool


def picture(width, height):
    """A PNG in black."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = zlib.compress((b"\0" * (width + 1)) * height)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", rows) + chunk(b"IEND", b""))


PATCH = "*** Begin Patch\n*** Update File: {}\n@@\n-two\n+2\n*** Add File: {}\n+added\n*** End Patch\n"
SERVER = "import sys\nfor line in sys.stdin:\n    print('echo ' + line.strip(), flush=True)\n"

# Name, arguments, an expression for the result; its status, where that is not ok.
HEARTH = [
    ("write", {"path": "a.txt", "content": "one\ntwo\nthree\n"}, r"a\.txt"),
    ("read", {"path": "a.txt", "offset": 2, "limit": 1}, r"2\s+two\n(?!.*three)"),
    ("edit", {"path": "a.txt", "edits": [{"old": "one", "new": "1"}, {"old": "three", "new": "3"}]}, r"a\.txt"),
    ("edit", {"path": "a.txt", "old": "none such", "new": ""}, "not found|does not", "error"),
    ("apply_patch", {"patch": PATCH.format("a.txt", "sub/b.txt")}, r"b\.txt"),
    ("list", {"path": ".", "depth": 2}, r"(?s)a\.txt.*b\.txt"),
    ("glob", {"pattern": "**/*.txt"}, r"(?s)^(?!.*hidden)(?=.*a\.txt)(?=.*sub/b\.txt)"),
    ("grep", {"pattern": "^[12]$", "path": "."}, r"(?s)^(?!.*hidden).*a\.txt.*1.*2"),
    ("search", {"text": "added"}, r"sub/b\.txt"),
    ("todo", {"todos": [{"content": "look", "status": "in_progress"}]}, r"\[>\] look"),
    ("image", {"path": "p.png"}, r"(?i)png.*7.*5"),
    ("shell", {"command": "cat a.txt"}, r"^1\n2\n3\n\[exit 0\]$"),
    ("shell", {"command": "echo begun; sleep 600", "timeout": 10000}, "^begun\nerror: stopped after 10 s\n", "timeout"),
    ("shell", {"command": "seq 1 100000"}, "output:14"),
    ("read", {"path": "output:14", "offset": 5000, "limit": 1}, r"5000\s+5000"),
    ("shell", {"command": "python3 -u server.py", "background": True}, r"\b1\b"),
    ("job_input", {"job": 1, "text": "hello\n"}, "echo hello"),
    ("job_list", {}, r"server\.py"),
    ("job_output", {"job": 1}, r"(?i)job 1|running|nothing"),
    ("job_stop", {"job": 1}, r"(?i)job 1|ended|stopped"),
    ("fetch", {"url": "http://{}/"}, "hello from outside"),
    ("mcp__fake__echo", {"text": "from a server"}, "from a server"),
    ("spawn", {"task": "x"}, "unknown tool: spawn; the tools are: shell", "refused"),
    ("finish", {"summary": "did it"}, ""),
]
CLAUDE = [
    ("Write", {"file_path": "a.txt", "content": "one\ntwo\n"}, r"a\.txt"),
    ("Read", {"file_path": "/workspace/a.txt"}, r"1\s+one\n\s*2\s+two"),
    ("Edit", {"file_path": "a.txt", "old_string": "one", "new_string": "1"}, r"a\.txt"),
    ("LS", {"path": "."}, r"a\.txt"),
    ("Glob", {"pattern": "*.txt"}, r"^(?!.*hidden).*a\.txt"),
    ("Grep", {"pattern": "two", "output_mode": "content", "-n": True}, r"a\.txt:2"),
    ("TodoWrite", {"todos": [{"content": "look", "status": "pending", "activeForm": "looking"}]}, "look"),
    ("Bash", {"command": "cat a.txt", "description": "shows it"}, "^1\ntwo\n"),
    ("Bash", {"command": "sleep 60", "run_in_background": True}, r"\b1\b"),
    ("TaskOutput", {"task_id": "1", "block": False}, "(?i)running|nothing"),
    ("TaskStop", {"task_id": "1"}, "(?i)ended|stopped|job 1"),
    ("WebFetch", {"url": "http://{}/", "prompt": "what is it?"}, "hello from outside"),
]
CODEX = [
    ("apply_patch", {"input": PATCH.format("old.txt", "new.txt")}, r"new\.txt"),
    ("read_file", {"file_path": "old.txt"}, "2"),
    ("list_dir", {"dir_path": "."}, r"new\.txt"),
    ("grep_files", {"pattern": "added"}, r"new\.txt"),
    ("update_plan", {"plan": [{"step": "look", "status": "in_progress"}]}, "look"),
    ("view_image", {"path": "p.png"}, "(?i)png.*7.*5"),
    ("exec_command", {"cmd": "cat new.txt"}, "added"),
    ("exec_command", {"cmd": "python3 -u server.py", "yield_time_ms": 300}, r"(?i)session"),
    ("write_stdin", {"session_id": 2, "chars": "hello\n"}, "echo hello"),
]


def play(dialect, table):
    """A run that makes these calls; then the same session goes on."""
    cli_support.needs_sandbox()
    with session() as one, server_beside() as here:
        (one.work / ".gitignore").write_text("hidden*\n")
        (one.work / "hidden.txt").write_text("1\ntwo\nadded\n")
        (one.work / "old.txt").write_text("two\n")
        (one.work / "p.png").write_bytes(picture(7, 5))
        (one.work / "server.py").write_text(SERVER)
        shutil.copy(cli_support.ROOT / "tests" / "mcp_fake.py", one.work / "fake.py")
        config = configured(one, mcp={"fake": {"command": ["python3", "/workspace/fake.py"]}})
        options = [*config, "--dialect", dialect, "--tools", "all", "--policy", "full",
                   "--set", f"network.allow={here}", "--compact-at", "0", "--max-repeats", "off", "--max-turns", "100"]
        turns = [tool(name, **{key: value.format(here) if key == "url" else value for key, value in arguments.items()})
                 for name, arguments, *_ in table]
        with one.run([*turns, say("all done")], *options, script={"context_max": 400_000}) as run:
            run.wait("idle")
            run.message("go")
            for name, arguments, wanted, *status in table:
                result = run.wait("tool_result")
                assert result["name"] == name and result["status"] == (status or ["ok"])[0], (name, result)
                assert re.search(wanted, result["text"]), (name, arguments, result["text"])
            run.wait("idle", stop="finish" if table[-1][0] == "finish" else "answer")
            run.end()
        assert run.error == "", run.error
        with one.run([say("back")], "--resume", "last", *config, script={"context_max": 400_000}) as run:
            run.wait("idle")
            begin(run, "go on")
            run.end()
        calls = [call["name"] for turn in one.tree()["agents"][0]["turns"] for call in turn["calls"]]
        assert calls == [row[0] for row in table], calls
        [declared] = [event["tools"] for event in run.events if event["event"] == "session"]
        left = {tool["name"] for tool in declared} - set(calls)
        assert not [name for name in left if not name.startswith("mcp__")], left  # none was forgotten


def test_every_tool_of_ours():
    play("hearth", HEARTH)


def test_every_tool_of_claude():
    play("claude", CLAUDE)


def test_every_tool_of_codex():
    play("codex", CODEX)


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
