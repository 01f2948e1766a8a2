#!/usr/bin/env python3
"""examples/mini/harder: the same seed gives the same tasks, its proofs hold, and a task that is damaged fails them."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

MAKE = pathlib.Path(__file__).resolve().parent.parent / "examples/mini/harder/make_tasks.py"


def make(*arguments):
    done = subprocess.run([sys.executable, str(MAKE), *map(str, arguments)], capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def edit(path, old, new):
    text = path.read_text()
    assert old in text, f"{path}: no {old!r}"
    path.write_text(text.replace(old, new))


def swap_bugs(task):
    """In the order in which they do not show."""
    made = json.loads((task / "task.json").read_text())
    made["bugs"].reverse()
    (task / "task.json").write_text(json.dumps(made))


def training_kind(task):
    """A bug that training plants: the same text under another name."""
    made = json.loads((task / "task.json").read_text())
    made["bugs"][0].update(template="total", kind="update")
    (task / "task.json").write_text(json.dumps(made))


def easy_hidden(task):
    edit(task / "hidden/hidden_tests.py", "raise SystemExit(0 if", "raise SystemExit(0 if True or")


DAMAGE = [
    ("solution", lambda t: [p.write_text("x = 1\n") for p in (t / "solution").iterdir()], "is not what repairs"),
    ("hidden", easy_hidden, "hidden tests do not see"),
    ("order", swap_bugs, "a later bug shows"),
    ("held out", training_kind, "training plants"),
    ("leak", lambda t: shutil.copy(t / "hidden/hidden_tests.py", t / "repo"), "a hidden test is in the repository"),
]


def main():
    problems = 0
    with tempfile.TemporaryDirectory(prefix="hearth-harder-") as base:
        first, second = pathlib.Path(base) / "first", pathlib.Path(base) / "second"
        for out in (first, second):
            status, _ = make(out, "--seed", 5, "--levels", "1,2,1")
            problems += status != 0
        if not files(first) or files(first) != files(second):
            print("the same seed gives other tasks")
            problems += 1
        status, said = make("--check", first)
        if status != 0 or "4 tasks (1 of level 1, 2 of level 2, 1 of level 3), 0 problems" not in said:
            print(f"the tasks do not hold what they promise: {said}")
            problems += 1
        task = next(first.glob("002-*"))
        for name, damage, says in DAMAGE:
            damaged = pathlib.Path(base) / "damaged"
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(task, damaged / task.name)
            damage(damaged / task.name)
            status, said = make("--check", damaged)
            if status != 1 or says not in said:
                print(f"damage '{name}' is not seen: {said}")
                problems += 1
        if make(first)[0] != 2:
            print("a folder that is not empty is written into")
            problems += 1
    print("ok" if problems == 0 else f"{problems} problems")
    return problems != 0


if __name__ == "__main__":
    sys.exit(main())
