#!/usr/bin/env python3
"""hearth swarm --eval as a user calls it, with a scripted engine: test_swarm_eval_cli.py HEARTH_SCRIPTED [NAME-PART]...

What is refused, what counts as solved, the file of results and its continuation, what is left behind. A swarm's
agents are numbered through all runs of a process, so a script says what comes of each run.
"""
import glob
import json
import os
import signal
import subprocess
import sys
import time

import cli_support
from cli_support import HEARTH, ROOT, Scratch, check

SINGLE = ["--eval-settings", "single", "--max-time", "60s"]


def shell(agent, command):
    return {"agent": agent, "calls": [{"name": "shell", "arguments": {"command": command}}]}


def say(agent, text="Done."):
    return {"agent": agent, "text": text}


def answer(agent, word):
    return [shell(agent, f"echo {word} > answer"), say(agent)]


class Evaluation(Scratch):
    def __enter__(self):
        super().__enter__()
        self.results = self.path / "results.jsonl"
        return self

    def task(self, name, level=1):
        """Visible: there is an answer. Hidden: it is right."""
        folder = self.path / "tasks" / name
        for part in ("repo", "hidden"):
            (folder / part).mkdir(parents=True)
        (folder / "repo" / "question").write_text("?\n")
        (folder / "hidden" / "check.sh").write_text("grep -qx right answer && test -e question && echo all passed\n")
        (folder / "task.json").write_text(json.dumps({
            "level": level, "prompt": "Answer.", "test_command": "test -s answer", "hidden_command": "sh check.sh",
            "hidden_line": "all passed"}))

    def start(self, turns, *arguments):
        script = self.path / "script.json"
        script.write_text(json.dumps({"turns": turns}))
        return subprocess.Popen(
            [HEARTH, "swarm", "--eval", str(self.path / "tasks"), "--eval-results", str(self.results), "--state", self.state,
             *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(os.environ, HEARTH_SCRIPT=str(script), XDG_CONFIG_HOME=str(self.path / "config")))

    def call(self, turns, *arguments):
        process = self.start(turns, *arguments)
        try:
            out, err = process.communicate(timeout=180)
        finally:
            process.kill()
        left = [] if not os.path.isdir(self.state) else os.listdir(self.state)
        assert set(left) <= {"eval.lock"}, left
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def wait_for(self, process, is_there):
        deadline = time.monotonic() + 60
        while not is_there():
            assert time.monotonic() < deadline and process.poll() is None, process
            time.sleep(0.05)

    def lines(self):
        return [json.loads(line) for line in self.results.read_text().splitlines()[1:]]


def test_wrong_options_are_named():
    with Evaluation() as one:
        one.task("one")
        cases = [
            (["--eval-settings", "single,rase"], "--eval-settings: there is no rase"),
            (["--eval-seeds", "0"], "--eval-seeds wants a whole number from 1 to 16"),
            (["--eval-tasks", "0"], "--eval-tasks wants"),
            (["--strategy", "race"], "--strategy: an evaluation has its own"),
            (["--verify", "true"], "--verify: an evaluation has its own"),
            (["-C", "."], "--directory: an evaluation has its own"),
            (["--max-tokens", "100"], "--max-tokens: 256 at least"),
            (["--max-time", "31000h"], "--max-time: 2 seconds to 30 days"),
            (["--max-time", "1s"], "--max-time: 2 seconds to 30 days"),
            (["--seed", "1"], "--seed: an evaluation has its own"),
            (["Mend it"], "a task: an evaluation has its own"),
        ]
        for options, why in cases:
            check(one.call([], *options), 2, err=why)
        about = one.path / "tasks" / "one" / "task.json"
        good = json.loads(about.read_text())
        about.write_text(json.dumps(dict(good, prompt="x" * 40000)))
        check(one.call([]), 5, err="task one: the prompt has more than 32768 bytes")
        about.write_text("{}")
        done = one.call([])
        assert done.returncode == 5, done
        assert b"task one" in done.stderr, done
        assert not one.results.exists()


def test_solved_is_what_hidden_tests_say():
    cli_support.needs_sandbox()
    with Evaluation() as one:
        for name in ("one", "two", "xthree"):
            one.task(name, level=2 if name == "two" else 1)
        turns = [*answer(1, "right"), *answer(2, "wrong"), say(3, "No idea.")]
        report = one.path / "report.json"
        done = one.call(turns, *SINGLE, "--eval-seeds", "1", "--eval-report", str(report))
        check(done, 0, out=r"3 tasks, 1 seeds; .*3 of 3 runs\n\nEqual wall clock: 60\.0 s a run")
        assert b"Equal tokens" not in done.stdout, done
        found = {line["task"]: line for line in one.lines()}
        assert [found[n]["solved"] for n in ("one", "two", "xthree")] == [True, False, False], found
        assert [found[n]["passed"] for n in ("one", "two", "xthree")] == [True, True, False], found
        assert all(line["agents"] == 1 and line["tokens"] > 0 and not line["fault"] for line in found.values()), found
        single = json.loads(report.read_text())["budgets"][0]["settings"][0]
        assert single["runs"] == 3 and abs(single["solved"] - 1 / 3) < 1e-9 and single["deceived"] == 1, single
        svg = one.path / "plot.svg"
        subprocess.run([sys.executable, ROOT / "scripts" / "draw_eval", report, svg], check=True)
        assert svg.read_text().startswith("<svg"), svg
        again = one.call([], *SINGLE, "--eval-seeds", "1")
        assert again.returncode == 0 and again.stdout == done.stdout, again
        check(one.call([], *SINGLE, "--eval-seeds", "1", "--policy", "read-only"), 5,
              err='it is of another evaluation: .*"policy":"read-only"')
        check(one.call([], *SINGLE[:2], "--max-time", "50s", "--eval-seeds", "1"), 5,
              err='it is of another evaluation: it has "time_ms":60000.* and this one "time_ms":50000')


def test_interrupted_and_killed_it_goes_on():
    cli_support.needs_sandbox()
    with Evaluation() as one:
        one.task("one")
        one.task("two")
        process = one.start([*answer(1, "right"), shell(2, "touch started; sleep 600"), say(2)], *SINGLE, "--eval-seeds", "1")
        one.wait_for(process, lambda: glob.glob(os.path.join(one.state, "eval", "run", "swarms", "*", "work", "*", "started")))
        assert one.results.read_text().count("\n") == 2
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and b"interrupted: the same command goes on" in err, (process.returncode, err)
        assert os.listdir(one.state) == ["eval.lock"]

        process = one.start([shell(1, "sleep 600"), say(1)], *SINGLE, "--eval-seeds", "1")
        one.wait_for(process, (one.path / "state" / "eval" / "run").exists)
        busy = one.start([], *SINGLE)
        _, err = busy.communicate(timeout=60)
        assert busy.returncode != 0 and b"another evaluation works in" in err, (busy.returncode, err)
        assert (one.path / "state" / "eval" / "run").exists() and process.poll() is None, process.poll()
        process.kill()
        process.communicate(timeout=60)

        check(one.call(answer(1, "right"), *SINGLE, "--eval-seeds", "1"), 0, out="2 of 2 runs")
        assert [line["solved"] for line in one.lines()] == [True, True], one.lines()


def test_a_directory_of_somebody_else_stays():
    with Evaluation() as one:
        one.task("one")
        precious = one.path / "state" / "eval" / "precious"
        precious.parent.mkdir(parents=True)
        precious.write_text("kept\n")
        for _ in range(2):  # nor does the first make it its own
            process = one.start([], *SINGLE)
            _, err = process.communicate(timeout=60)
            assert process.returncode != 0 and b"is of no evaluation: name another --state" in err, (process.returncode, err)
            assert precious.read_text() == "kept\n"


if __name__ == "__main__":
    sys.exit(cli_support.main(dict(globals())))
