"""What tests of the built program share: a workspace with a place for state, calls of the program, and the
output of cmocka's form that tests/summarize.py counts. The program is the first argument of the test. The model is
the bundled one, greedy, so that what it does is known: given SLOW_TASK its first step is to run tests.py.
"""
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEARTH = os.path.abspath(sys.argv[1])
MINI = ROOT / "examples" / "mini"
SLOW_TASK = "Fix the failing tests. Use `python3 tests.py` to check."
GREEDY = ["--temperature", "0", "--effort", "50"]


class Skipped(Exception):
    pass


class Scratch:
    """A temporary directory with a workspace and a place for state."""

    def __enter__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="hearth-cli-"))
        self.state = str(self.path / "state")
        self.work = self.path / "work"
        self.work.mkdir()
        return self

    def __exit__(self, *unused):
        shutil.rmtree(self.path, ignore_errors=True)

    def demo(self, name="012-trace-call"):
        shutil.copytree(MINI / "tasks-demo" / name / "repo", self.work, dirs_exist_ok=True)
        return json.loads((MINI / "tasks-demo" / name / "task.json").read_text())

    def slow(self, seconds):
        (self.work / "tests.py").write_text(
            "import time\nopen('started', 'w').close()\n"
            f"end = time.time() + {seconds}\n"
            "while time.time() < end:\n"
            "    open('beat', 'w').write(str(time.time()))\n    time.sleep(0.05)\n"
            "print('ok')\n")

    def check_command_is_gone(self):
        """The command of slow() no longer runs: its file stops changing."""
        deadline = time.monotonic() + 10
        last, since = None, time.monotonic()
        while time.monotonic() - since < 1:
            assert time.monotonic() < deadline, "the command still runs"
            beat = self.work / "beat"  # not there: killed before its first one
            now = beat.read_text() if beat.exists() else ""
            if now != last:
                last, since = now, time.monotonic()
            time.sleep(0.1)

    def run(self, *arguments, **options):
        return hearth("run", *arguments, "-C", str(self.work), "--state", self.state, **options)

    def start(self, *arguments):
        return subprocess.Popen(
            [HEARTH, "run", *arguments, "-C", str(self.work), "--state", self.state, *GREEDY],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for_tool(self, process):
        deadline = time.monotonic() + 180
        while not (self.work / "started").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the tool did not start"
            time.sleep(0.02)

    def tree(self, *arguments):
        shown = hearth("sessions", "show", "last", "--state", self.state, "--json", *arguments)
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    def check_database(self):
        with sqlite3.connect(f"file:{self.state}/sessions.db?mode=ro", uri=True) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def here(state):
    """The directory in which 'last' is the newest session of a state directory; None: there is none such."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{state}/sessions.db?mode=ro", uri=True)) as database:
            [place] = database.execute(
                "SELECT iif(worktree_of = '', workspace, worktree_of) FROM session"
                " ORDER BY created_ms DESC, number DESC LIMIT 1").fetchone()
    except (sqlite3.Error, TypeError):
        return None
    return place if os.path.isdir(place) else None


def hearth(*arguments, text="", environment=None, timeout=300):
    state = arguments[arguments.index("--state") + 1] if "--state" in arguments else None
    return subprocess.run(
        [HEARTH, *arguments], input=text.encode(), stdout=subprocess.PIPE,
        cwd=here(state) if state and os.path.isabs(state) else None,
        stderr=subprocess.PIPE, env=dict(os.environ, **(environment or {})), timeout=timeout)


def check(done, status, out=None, err=None):
    what = f"{done.args}: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == status, f"wanted status {status}: {what}"
    assert out is None or re.search(out, done.stdout.decode()), f"wanted {out!r}: {what}"
    assert err is None or re.search(err, done.stderr.decode()), f"wanted {err!r}: {what}"
    return done


def is_slow_build():
    content = pathlib.Path(HEARTH).read_bytes()
    return b"__asan_init" in content or b"__tsan_init" in content


@functools.lru_cache(maxsize=None)
def what_doctor_says():
    with Scratch() as scratch:  # the user's own state is no matter of the tests
        done = hearth("doctor", "--state", scratch.state)
    return "" if done.returncode == 0 else done.stdout.decode()


def needs_sandbox():
    if what_doctor_says():
        raise Skipped("this machine cannot confine commands: " + what_doctor_says())


def damaged_model(scratch, name, content):
    model = scratch.path / "model"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(MINI / "model", model)
    if content is None:
        (model / name).unlink()
    else:
        (model / name).write_bytes(content)
    return str(model)


def in_mount_namespace(script):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Skipped("needs root for a small file system of its own")
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                           stderr=subprocess.PIPE)
    if probe.returncode != 0:
        raise Skipped("cannot mount: " + probe.stderr.decode().strip())
    return subprocess.run(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=300)


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
         "number": (int, float)}


@functools.lru_cache(maxsize=None)
def event_schema():
    return json.loads((ROOT / "docs" / "json-events.schema.json").read_text())


def misfit(value, schema, place):
    """Where a value is not as the schema of the events says, or None; unknown fields are a misfit here."""
    if "$ref" in schema:
        schema = event_schema()["$defs"][schema["$ref"].split("/")[-1]]
    types = schema.get("type", [])
    known = [TYPES[name] for name in ([types] if isinstance(types, str) else types)]
    if known and not any(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) for kind in known):
        return f"{place}: {value!r} is no {types}"
    if value != schema.get("const", value) or value not in schema.get("enum", [value]):
        return f"{place}: {value!r} is none of {schema.get('enum', schema.get('const'))}"
    if "minimum" in schema and value < schema["minimum"] or "maximum" in schema and value > schema["maximum"]:
        return f"{place}: {value} is out of range"
    if isinstance(value, list) and "items" in schema:
        found = (misfit(item, schema["items"], f"{place}[{at}]") for at, item in enumerate(value))
        return next((what for what in found if what), None)
    if not isinstance(value, dict) or "properties" not in schema:
        return None
    for name in schema["required"]:
        if name not in value:
            return f"{place}: no {name}"
    found = (misfit(item, schema["properties"][name], f"{place}.{name}") if name in schema["properties"]
             else f"{place}: unknown {name}" for name, item in value.items())
    return next((what for what in found if what), None)


def event_of(line):
    """The event of a line of --json, which is what docs/json-events.schema.json says."""
    event = json.loads(line)
    check_event(event)
    return event


def check_event(event):
    kind = event_schema()["$defs"].get(event["event"])
    wrong = misfit(event, kind, event["event"]) if kind else f"no event {event['event']}"
    assert not wrong, (wrong, event)


def run_tests(tests):
    failed = skipped = 0
    print(f"[==========] Running {len(tests)} test(s).")
    for name, test in tests:
        name = name[len("test_"):]
        print(f"[ RUN      ] {name}", flush=True)
        try:
            test()
            print(f"[       OK ] {name}")
        except Skipped as reason:
            skipped += 1
            print(f"SKIPPED {name}: {reason}")
            print(f"[  SKIPPED ] {name}")
        except Exception:  # pylint: disable=broad-except
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"[  FAILED  ] {name}")
    print(f"[==========] {len(tests)} test(s) run, {failed} failed, {skipped} skipped.", flush=True)
    return 1 if failed else 0


def main(names):
    """Runs the tests among a module's names, all or those that the command line names a part of."""
    parts = sys.argv[2:]
    return run_tests([(name, test) for name, test in names.items()
                      if name.startswith("test_") and callable(test)
                      and (not parts or any(part in name for part in parts))])
