#!/usr/bin/env python3
"""Long sessions, and sessions that are killed: test_endurance.py HEARTH_SCRIPTED [NAME-PART]...

The whole program with a scripted engine. $HEARTH_KILLS is how often a session is killed (default 12),
$HEARTH_SOAK_CALLS how many calls a session makes (default 150); .ci/run asks for 200 and 2,000.
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import cli_support
from cli_support import Scratch, needs_sandbox

KILLS = int(os.environ.get("HEARTH_KILLS", "12"))
CALLS = int(os.environ.get("HEARTH_SOAK_CALLS", "150"))
GROWTH_KIB_MAX = 8 * 1024  # of resident memory over 2,000 calls
DATABASE_BYTES_CALL = 16 * 1024  # what a call of the soak may add to the record


def write_call(name, content):
    return {"name": "write", "arguments": {"path": name, "content": content}}


def edit_call(name, old, new):
    return {"name": "edit", "arguments": {"path": name, "old": old, "new": new}}


def server_call(path):
    return {"name": "mcp__fake__write", "arguments": {"text": path}}


def with_server(scratch):
    """Options with the MCP server "fake", whose processes are known by their command line."""
    name = f"server-{scratch.path.name}.py"
    shutil.copy(pathlib.Path(__file__).with_name("mcp_fake.py"), scratch.work / name)
    path = scratch.path / "config.json"
    path.write_text(json.dumps({"mcp": {"fake": {"command": ["python3", f"/workspace/{name}"]}}}))
    return ["--config", str(path), "--allow", "mcp__*"]


def shell_call(command):
    return {"name": "shell", "arguments": {"command": command}}


def start(scratch, script, *arguments):
    path = scratch.path / "script.json"
    path.write_text(json.dumps(script))
    return subprocess.Popen(
        [cli_support.HEARTH, "run", *arguments, "--state", scratch.state, "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=scratch.work,
        env=dict(os.environ, HEARTH_SCRIPT=str(path)))


def events_of(data):
    """The whole lines of an event stream, which may have been cut anywhere."""
    return [cli_support.event_of(line) for line in data[:data.rfind(b"\n") + 1].splitlines()]


# ---- kill -9 -------------------------------------------------------------------------------------


EDITED = "edited "


def life(number):
    """What one process does until it is killed: every call leaves its mark once."""
    turns = []
    for step in range(6):
        name = f"{number:04d}-{step}"
        turns.append({"text": f"Step {name}.", "delay_us": 200, "calls": [
            write_call(f"file-{name}", name), edit_call(f"file-{name}", name, EDITED + name),
            shell_call(f"echo {name} >> log"), server_call(f"/workspace/mcp-{name}")]})
    return {"turns": turns + [{"text": "Done."}], "context_max": 4_000_000}


def calls_of(scratch):
    with sqlite3.connect(f"file:{scratch.state}/sessions.db?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = database.execute("SELECT name, arguments, status FROM call ORDER BY number").fetchall()
    return [(bytes(name).decode(), json.loads(bytes(text)), status) for name, text, status in rows]


def check_marks(scratch, acknowledged):
    """The record has every call that was acknowledged, and the workspace what the record says."""
    log = scratch.work / "log"
    lines = log.read_text().split() if log.exists() else []
    assert len(lines) == len(set(lines)), "a command ran twice"
    done, started, written = set(), set(), {}
    for _, arguments, status in calls_of(scratch):
        mark = mark_of(arguments)
        started.add(mark)
        if status == 1:  # ok
            done.add(mark)
        if "content" in arguments:
            written[mark] = arguments["content"]
    for mark in done:
        if mark in written:
            edit = mark + " edited"
            allowed = [written[mark]] * (edit not in done) + [EDITED + written[mark]] * (edit in started)
            assert (scratch.work / mark).read_text() in allowed, mark
        elif mark.startswith("mcp-"):
            assert (scratch.work / mark).read_text() == "written", mark
        elif " " not in mark:
            assert mark in lines, f"{mark} is recorded as done and was not"
    assert acknowledged <= done, f"lost: {sorted(acknowledged - done)[:3]}"
    for mark in lines:
        assert mark in started, f"{mark} ran before it was recorded"
    for path in [*scratch.work.glob("file-*"), *scratch.work.glob("mcp-*")]:
        assert path.name in started, f"{path.name} was written before it was recorded"


def processes_of(scratch):
    """Whoever still has the workspace open or as its directory."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                if os.readlink(entry / "cwd").startswith(str(scratch.work)) or \
                        scratch.path.name.encode() in command:
                    found.append((entry.name, command[:200]))
            except OSError:
                pass
    return found


def check_nobody_is_left(scratch):
    deadline = time.monotonic() + 10
    while processes_of(scratch):
        assert time.monotonic() < deadline, f"left behind: {processes_of(scratch)}"
        time.sleep(0.02)


def acknowledged_by(data):
    """Marks of the calls whose results were shown."""
    shown, ended, calls = set(), set(), {}
    for event in events_of(data):
        if event["event"] == "tool_call":
            calls[event["call"]] = event["arguments"]
        elif event["event"] == "tool_result":
            assert event["status"] == "ok", event
            ended.add(mark_of(calls[event["call"]]))  # shown before it is recorded:
            continue
        if event["event"] in ("tool_call", "turn", "finished"):  # these come after the record
            shown |= ended
    return shown


def mark_of(arguments):
    if "command" in arguments:
        return arguments["command"].split()[1]
    if "text" in arguments:
        return arguments["text"].split("/")[-1]
    return arguments["path"] + " edited" * ("old" in arguments)


def test_killed_at_random_moments_a_session_loses_nothing():
    needs_sandbox()
    seed = int(os.environ.get("HEARTH_KILL_SEED", str(time.time_ns() % 1_000_000)))
    print(f"seed {seed}, {KILLS} kills")
    random.seed(seed)
    with Scratch() as scratch:
        acknowledged, length, killed = set(), 3.0, 0
        options = [*with_server(scratch), "--max-turns", "5000"]
        arguments = ["begin", "-C", str(scratch.work), *options]
        for number in range(KILLS * 3):
            began = time.monotonic()
            process = start(scratch, life(number), *arguments)
            try:
                out, error = process.communicate(timeout=random.uniform(0.02, length))
                length = (length + time.monotonic() - began) / 2  # as long as a life takes
                assert process.returncode == 0, error
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                out, error = process.communicate()
                killed += 1
            check_nobody_is_left(scratch)
            if not pathlib.Path(scratch.state, "sessions.db").exists() or not sessions(scratch):
                continue  # killed before there was a session
            acknowledged |= acknowledged_by(out)
            check_marks(scratch, acknowledged)
            arguments = ["--resume", "last", "go on", *options]
            if killed == KILLS:
                break
        assert killed == KILLS and len(acknowledged) >= KILLS // 4, (killed, len(acknowledged))
        process = start(scratch, {"turns": [{"text": "All done."}], "context_max": 4_000_000}, *arguments)
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        check_marks(scratch, acknowledged)
        tree = scratch.tree()
        assert tree["status"] == "done" and len(tree["agents"]) == 1
        assert list(scratch.work.glob("mcp-*")) or KILLS < 10  # the server came to it
        assert len(tree["resumptions"]) >= 1


class Line:
    """What the calls of a session changed, as a stack that undo and rewind take from."""

    def __init__(self, scratch):
        self.scratch = scratch
        self.files = {}  # what must be there
        self.changes = []  # (number of the turn, path, content before), oldest first
        self.serial = 0

    def go_on(self):
        """A run of some turns that write and edit."""
        turns, planned, first = [], [], len(self.turns())
        for _ in range(3):
            calls, plan = [], []
            for name in ("a", f"new-{self.serial}", "b"):
                content = f"{name} {self.serial}\n"
                calls.append(edit_call(name, self.files[name], content) if name == "b" and "b" in self.files
                             else write_call(name, content))
                plan.append((name, self.files.get(name)))
                self.files[name] = content
            self.serial += 1
            turns.append({"text": "", "calls": calls})
            planned.append(plan)
        where = ["--resume", "last", "more"] if first else ["begin", "-C", str(self.scratch.work)]
        script = {"turns": turns + [{"text": "Done."}], "context_max": 4_000_000}
        out, error = start(self.scratch, script, *where, "--max-turns", "5000").communicate(timeout=120)
        made = [turn for turn in self.turns()[first:] if turn["calls"]]
        assert [len(turn["calls"]) for turn in made] == [3, 3, 3], (out[-2000:], error)
        for turn, plan in zip(made, planned):
            self.changes += [(turn["index"] + 1, *change) for change in plan]

    def turns(self):
        return self.scratch.tree()["agents"][0]["turns"] if self.serial > 0 else []

    def back_words(self):
        """An undo, or a rewind to a turn in which something was changed; how many changes that takes."""
        if random.random() < 0.5:
            return ["undo"], 1
        turn = random.choice(self.changes)[0]
        return ["rewind", "--turn", str(turn)], sum(1 for change in self.changes if change[0] > turn)

    def take_back(self, count):
        for _ in range(count):
            _, path, before = self.changes.pop()
            if before is None:
                del self.files[path]
            else:
                self.files[path] = before

    def found(self):
        return {path.name: path.read_text() for path in self.scratch.work.iterdir()}


def rewinds_of(scratch):
    with contextlib.closing(sqlite3.connect(f"file:{scratch.state}/sessions.db?mode=ro", uri=True)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return database.execute("SELECT count(*) FROM rewind").fetchone()[0]


def test_killed_while_files_are_put_back_the_next_attempt_ends_it():
    needs_sandbox()
    seed = int(os.environ.get("HEARTH_KILL_SEED", str(time.time_ns() % 1_000_000)))
    print(f"seed {seed}")
    random.seed(seed)
    with Scratch() as scratch:
        line, killed, halfway, length = Line(scratch), 0, 0, 0.2
        for _ in range(KILLS * 4):
            if len(line.changes) < 4:
                line.go_on()
            words, count = line.back_words()
            command = [cli_support.HEARTH, "sessions", *words, "--state", scratch.state]
            before, rewinds = line.found(), rewinds_of(scratch)
            assert before == line.files
            began = time.monotonic()
            process = subprocess.Popen(command, cwd=scratch.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                _, error = process.communicate(timeout=random.uniform(0, length))
                length = (length + time.monotonic() - began) / 2
                assert process.returncode == 0, (words, error)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                killed += 1
            line.take_back(count)
            now = line.found()
            for name in before.keys() | line.files.keys() | now.keys():  # each file is old or new
                assert now.get(name) in (before.get(name), line.files.get(name)), (words, name)
            if rewinds_of(scratch) == rewinds:
                halfway += now != before
                again = subprocess.run(command, cwd=scratch.work, capture_output=True, check=False)
                assert again.returncode == 0, (words, again.stderr)
            assert line.found() == line.files, words
            if killed == KILLS:
                break
        print(f"{killed} kills, {halfway} of them with files put back and nothing recorded")
        assert killed >= KILLS // 2, killed
        line.go_on()
        assert line.found() == line.files


def sessions(scratch):
    with sqlite3.connect(f"file:{scratch.state}/sessions.db?mode=ro", uri=True) as database:
        try:
            return database.execute("SELECT count(*) FROM session").fetchone()[0]
        except sqlite3.OperationalError:
            return 0  # the schema was not committed yet


# ---- soak ----------------------------------------------------------------------------------------


def soak_script(calls):
    turns = []
    for number in range(calls):
        kind = number % 5
        if kind == 0:
            call = shell_call(f"echo {number}; seq 1 200")
        elif kind in (1, 2):
            call = write_call(f"file-{number % 40}", f"{number}\n" * 50)
        elif kind == 3:
            call = {"name": "read", "arguments": {"path": f"file-{(number - 1) % 40}"}}
        else:
            call = {"name": "edit", "arguments": {
                "path": f"file-{(number - 2) % 40}", "old": "no such text", "new": str(number)}}
        turns.append({"text": f"Call {number}.", "calls": [call]})
    return {"turns": turns + [{"text": "Done."}], "context_max": 4_000_000}


def resident_kib(process):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def children_of(process):
    tasks = pathlib.Path(f"/proc/{process.pid}/task")
    return sum(len((task / "children").read_text().split()) for task in tasks.iterdir())


def test_a_long_session_stays_within_bounds():
    needs_sandbox()
    with Scratch() as scratch:
        process = start(scratch, soak_script(CALLS), "soak", "-C", str(scratch.work),
                        "--max-turns", str(CALLS + 10))
        results, warm, last = 0, None, None
        for line in process.stdout:
            if json.loads(line)["event"] != "turn":
                continue
            results += 1
            if results == CALLS // 5:
                warm = (resident_kib(process), len(os.listdir(f"/proc/{process.pid}/fd")),
                        children_of(process))
            elif results == CALLS:
                last = (resident_kib(process), len(os.listdir(f"/proc/{process.pid}/fd")),
                        children_of(process))
        error = process.stderr.read()
        assert process.wait() == 0, error
        assert results == CALLS + 1, results
        print(f"{CALLS} calls: resident {warm[0]} to {last[0]} KiB, descriptors {warm[1]} to {last[1]}")
        if not cli_support.is_slow_build():  # a sanitizer keeps what was freed
            assert last[0] - warm[0] <= GROWTH_KIB_MAX, (warm, last)
        assert last[1] <= warm[1] + 2 and last[2] == 0, (warm, last)
        size = sum(path.stat().st_size for path in pathlib.Path(scratch.state).glob("sessions.db*"))
        assert size <= CALLS * DATABASE_BYTES_CALL + (1 << 20), size
        snapshots = sum(path.stat().st_size for path in
                        pathlib.Path(scratch.state, "snapshots").rglob("*") if path.is_file())
        print(f"database {size} bytes, snapshots {snapshots}")
        assert snapshots <= CALLS * DATABASE_BYTES_CALL + (1 << 20), snapshots
        tree = scratch.tree()
        assert tree["usage"]["calls"] == CALLS and tree["status"] == "done"
        check_nobody_is_left(scratch)


def main():
    parts = sys.argv[2:]
    empty = tempfile.NamedTemporaryFile("w", suffix=".json")  # for commands that run nothing
    empty.write('{"turns": []}')
    empty.flush()
    os.environ["HEARTH_SCRIPT"] = empty.name
    return cli_support.run_tests(
        [(name, test) for name, test in globals().items()
         if name.startswith("test_") and callable(test)
         and (not parts or any(part in name for part in parts))])


if __name__ == "__main__":
    sys.exit(main())
