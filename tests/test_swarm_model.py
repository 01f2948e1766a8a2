#!/usr/bin/env python3
"""hearth swarm with the bundled model: test_swarm_model.py HEARTH [NAME-PART]..."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import cli_support
from cli_support import HEARTH, MINI, Scratch, check, needs_sandbox

TASK = MINI / "tasks" / "001-col_sum-var"
ABOUT = json.loads((TASK / "task.json").read_text())


class Swarm(Scratch):
    def __enter__(self):
        super().__enter__()
        shutil.copytree(TASK / "repo", self.work, dirs_exist_ok=True)
        return self

    def command(self, *arguments):
        return [HEARTH, "swarm", ABOUT["prompt"], "-C", str(self.work), "--state", self.state, "--seed", "3",
                "--effort", "50", "--max-time", "280s", *arguments]

    def agents(self):
        return [agent for agent in self.tree()["agents"] if agent.get("node")]

    def check_nothing_is_left(self):
        swarms = os.path.join(self.state, "swarms")
        assert not os.path.exists(swarms) or os.listdir(swarms) == [], os.listdir(swarms)
        self.check_database()


def first_facts(agent):
    return agent["turns"][0]["cache"]


def test_race_of_four_mends_a_task_and_its_test_says_so():
    needs_sandbox()
    with Swarm() as one:
        done = subprocess.run(
            one.command("--strategy", "race", "--attempts", "4", "--verify", ABOUT["test_command"]),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
        check(done, 0, out=r"passed first: agent-\d, verified")
        again = subprocess.run(ABOUT["test_command"], shell=True, cwd=one.work, stdout=subprocess.DEVNULL, timeout=60)
        assert again.returncode == 0
        agents = one.agents()
        assert len(agents) == 4, agents
        for agent in agents:
            # What all share was evaluated once, by nobody of them.
            assert agent["turns"], (agent["name"], agent["node"])
            facts = first_facts(agent)
            assert facts["reused_tokens"] > 400 and facts["evaluated_tokens"] < 150, facts
        [best] = [agent for agent in agents if agent["node"]["outcome"] == "passed"]
        assert best["node"]["merged_into"], best["node"]
        one.check_nothing_is_left()


def test_signal_in_the_middle_keeps_the_record_and_the_workspace():
    needs_sandbox()
    with Swarm() as one:
        before = {path.name: path.read_bytes() for path in one.work.iterdir() if path.is_file()}
        process = subprocess.Popen(
            one.command("--strategy", "race", "--attempts", "4", "--verify", "sleep 250", "--json"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in process.stdout:  # until somebody has called a tool
            if json.loads(line)["event"] == "tool_result":
                break
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, (process.returncode, out[-1000:], err)
        assert time.monotonic() - started < 30, "it took long to end"
        assert {agent["node"]["outcome"] for agent in one.agents()} <= {"cancelled", "unverified"}, one.agents()
        assert before == {path.name: path.read_bytes() for path in one.work.iterdir() if path.is_file()}
        one.check_nothing_is_left()


if __name__ == "__main__":
    sys.exit(cli_support.main(dict(globals())))
