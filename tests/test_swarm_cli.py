#!/usr/bin/env python3
"""hearth swarm as a user calls it, with a scripted engine: test_swarm_cli.py HEARTH_SCRIPTED [NAME-PART]...

What is refused and how, exit statuses, plain lines, JSON events, the tree on a terminal, what is in the
workspace afterwards. Each agent plays the turns that the script has for its number; which name that one
has is not said, since agents start beside each other.
"""
import contextlib
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
import fcntl
import termios

import cli_support
from cli_support import HEARTH, Scratch, check

VERIFY = ["--verify", "grep -qx right answer"]


def shell(agent, command):
    return {"agent": agent, "calls": [{"name": "shell", "arguments": {"command": command}}]}


def say(agent, text="Done."):
    return {"agent": agent, "text": text}


def answer(agent, word):
    return [shell(agent, f"echo {word} > answer"), say(agent, f"It is {word}.")]


class Swarm(Scratch):
    """A workspace, and the program with a script."""

    def start(self, turns, *arguments, **options):
        script = self.path / "script.json"
        script.write_text(json.dumps({"turns": turns}))
        return subprocess.Popen(
            [HEARTH, "swarm", *arguments, "-C", str(self.work), "--state", self.state],
            env=dict(os.environ, HEARTH_SCRIPT=str(script), XDG_CONFIG_HOME=str(self.path / "config")),
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})

    def call(self, turns, *arguments, timeout=120):
        process = self.start(turns, *arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        self.check_nothing_is_left()
        return done

    def hearth(self, *arguments):
        script = self.path / "script.json"
        return subprocess.run(
            [HEARTH, *arguments, "--state", self.state], capture_output=True, timeout=120, check=False,
            env=dict(os.environ, HEARTH_SCRIPT=str(script)))

    def check_nothing_is_left(self):
        """No copy of an agent's, no process in one."""
        left = sorted(str(path.relative_to(self.state)) for path in (self.path / "state" / "swarms").rglob("*"))
        assert not left, left[:20]
        for cwd in os.listdir("/proc"):
            if cwd.isdigit():
                try:
                    place = os.readlink(f"/proc/{cwd}/cwd")
                except OSError:
                    continue
                assert not place.startswith(self.state), (cwd, place)

    def copies(self):
        """The agents' copies of the workspace."""
        return [copy for swarm in (self.path / "state" / "swarms").iterdir() for copy in (swarm / "work").iterdir()]

    def answer(self):
        path = self.work / "answer"
        return path.read_text() if path.exists() else None


def events_of(done):
    events = [cli_support.event_of(line) for line in done.stdout.decode().splitlines()]
    return [event for event in events if event["event"] not in ("note", "warning")]


def commands():
    """The words of all processes."""
    found = []
    for number in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            found.append(pathlib.Path("/proc", number, "cmdline").read_text(errors="replace").split("\0")[:-1])
    return found


def read_until(process, *parts):
    """What it says up to the line in which the last of these has come."""
    text = ""
    while not all(re.search(part, text) for part in parts):
        line = process.stdout.readline()
        assert line, (parts, text, process.stderr.read())
        text += line.decode()
    return text


# ---- what is refused -------------------------------------------------------------------------------


def test_wrong_options_are_named_before_anything_is_opened():
    cases = [
        (["--attempts", "0"], "--attempts wants a whole number from 1 to 255, not '0'"),
        (["--attempts", "10000"], "--attempts wants a whole number from 1 to 255, not '10000'"),
        (["--attempts", "64"], "--attempts 64: at most 63 agents are started"),
        (["--attempts", "3", "--max-agents", "2"], "--attempts 3: at most 2 agents are started"),
        (["--max-agents", "0"], "--max-agents wants"),
        (["--max-agents", "10000"], "--max-agents wants"),
        (["--at-once", "0"], "--at-once wants"),
        (["--max-depth", "0"], "--max-depth wants"),
        (["--max-time", "1s"], "1000 ms are too short for a swarm: 2 s at least"),
        (["--max-time", "31000h"], "at most 30 days"),
        (["--max-tokens", "255"], "255 tokens are too few for a swarm"),
        (["--verify", ""], "--verify: the command is empty"),
        (["--verify", " \n"], "--verify: the command is empty"),
        (["--verify", "x" * 5000], "--verify: 5000 bytes"),
        (["--verify-time", "5s"], "--verify-time: there is no verifier"),
        (["--strategy", "rase"], "--strategy wants one of single, race.* did you mean 'race'"),
        (["--strategy", ""], "--strategy wants one of"),
        (["--strategy", "race"], "--strategy race needs --verify"),
        (["--strategy", "staged"], "--strategy staged needs --verify"),
        (["--strategy", "retries"], "--strategy retries needs --verify"),
        (["--worktree", "--strategy", "race"], "--strategy race needs --verify"),
        (["--strategy", "single", "--attempts", "3"], "--attempts 3: single makes one attempt"),
        (["--strategy", "plan", "--attempts", "2"], "--attempts 2: plan makes one attempt"),
        (["--agent-tools", "yes"], "--agent-tools wants on or off"),
        (["--max-memory", "lots"], "--max-memory wants a size"),
        (["--max-processes", "-1"], "--max-processes wants"),
        (["--eval-seeds", "2"], "--eval-seeds: there is no --eval"),
        (["--resume", "last"], "unknown option '--resume'"),
        (["--set", "swarm.verify= "], "'swarm.verify' is empty"),
        (["--set", "swarm.at_once=0"], "'swarm.at_once'"),
    ]
    with Swarm() as one:
        for options, why in cases:
            done = one.call([], "x", *options)
            check(done, 2, err=f"^hearth: .*{why}")
            assert not done.stdout, done
        check(one.call([], ""), 2, err="the task is empty")
        check(one.call([], "x" * 40000), 5, err="the task has 40000 bytes, a swarm takes at most 32768")
        assert not os.path.exists(one.state)


def test_a_verifier_of_a_project_counts_only_with_trust():
    with Swarm() as one:
        (one.work / ".hearth").mkdir()
        (one.work / ".hearth" / "config.json").write_text('{"swarm": {"verify": "true"}}')
        check(one.call([], "x", "--strategy", "race"), 2, err="race needs --verify")


# ---- what comes of it ------------------------------------------------------------------------------


def test_the_first_that_passes_wins_and_is_merged():
    cli_support.needs_sandbox()
    with Swarm() as one:
        (one.work / "kept").write_text("mine\n")
        turns = [*answer(1, "wrong"), shell(2, "until rm go 2>/dev/null; do sleep 0.1; done; echo right > answer"),
                 say(2, "It is right."), shell(3, "sleep 600"), say(3)]
        process = one.start(turns, "Answer", "--attempts", "3", *VERIFY)
        text = read_until(process, *(rf"agent-{i} +running" for i in (1, 2, 3)), r"agent-\d fails")
        failed = re.search(r"(agent-\d) fails", text)[1]
        for copy in one.copies():
            if not copy.name.startswith(failed):  # that one is about to be removed
                (copy / "go").touch()
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (text, out, err)
        one.check_nothing_is_left()
        text += out.decode()
        assert one.answer() == "right\n" and (one.work / "kept").read_text() == "mine\n"
        winner = re.search(r"^ +(agent-\d) passes$", text, re.M)[1]
        loser = re.search(r"^ +(agent-\d) fails: exit status 1$", text, re.M)[1]
        for part in (r"^race: a verifier is there: the first of 3 attempts that passes wins$",
                     r"^ +\d+\.\d s  agent-1 +starting +fork of root$",
                     r"^ +\d+\.\d s  agent-\d +cancelled ", rf"^ +{winner} is merged into root$",
                     rf"^result +passed: that of {winner}, 1 line changed; it is in the workspace$",
                     r"^said +It is right\.$", r"^verifier +grep -qx right answer$",
                     r"^agents +3: 1 passed, 1 failed, 1 cancelled$", r"^spent +\d+:\d\d, ",
                     r"^reused +\d", r"^details +hearth sessions show [0-9a-f-]+ --tree --state "):
            assert re.search(part, text, re.M), (part, text)
        assert "\x1b" not in text
        session = re.search("sessions show ([0-9a-f-]+)", text)[1]
        tree = one.hearth("sessions", "show", session, "--tree")
        check(tree, 0, out=rf"(?s)swarm +race, passed, merged.*{winner} \(fork\) +passed.*merged into")
        for agent, word in ((loser, "wrong"), (winner, "right")):
            check(one.hearth("sessions", "diff", session, "--agent", agent), 0, out=rf"\+{word}")
        check(one.hearth("sessions", "diff", session), 0, out=r"\+right")


def test_nothing_passes_is_another_status_and_changes_nothing():
    cli_support.needs_sandbox()
    with Swarm() as one:
        turns = [*answer(1, "wrong"), *answer(2, "worse")]
        done = one.call(turns, "Answer", "--strategy", "race", "--attempts", "2", *VERIFY)
        check(done, 1, out=r"(?m)^agents +2: 2 failed$")
        assert one.answer() is None
        assert b"fork of root" in done.stdout and b"race:" not in done.stdout  # it was asked for


def test_one_agent_without_a_verifier_ends_with_its_answer():
    cli_support.needs_sandbox()
    with Swarm() as one:
        done = one.call(answer(1, "some"), "Answer", "--strategy", "single")
        check(done, 0, out=r"(?m)^result +unverified: that of agent-1, 1 line changed; it is in the workspace$")
        assert one.answer() == "some\n"


def test_what_others_changed_meanwhile_is_not_overwritten():
    cli_support.needs_sandbox()
    with Swarm() as one:
        (one.work / "answer").write_text("open\n")
        turns = [shell(1, "until rm go 2>/dev/null; do sleep 0.1; done; echo right > answer"), say(1)]
        process = one.start(turns, "Answer", "--strategy", "race", "--attempts", "1", *VERIFY)
        text = read_until(process, "agent-1 +running")  # so its copy is made
        (one.work / "answer").write_text("mine\n")
        [copy] = one.copies()
        (copy / "go").touch()
        out, err = process.communicate(timeout=120)
        text += out.decode()
        assert one.answer() == "mine\n", (text, err)
        found = re.search(r"^take it +(hearth (sessions diff \S+ --agent agent-1) --state \S+ \| .*apply)$", text, re.M)
        assert found and "agent-1 is not merged into root, conflicts: answer" in text, text
        check(one.hearth(*found[2].split()), 0, out=r"-open\n\+right")
        one.check_nothing_is_left()


def test_what_was_not_merged_is_taken_home_by_what_the_summary_names():
    cli_support.needs_sandbox()
    for kind in ("repository", "directory", "inside another repository"):
        with Swarm() as one:
            one.work = one.path / "it's work"
            one.work.mkdir()
            (one.work / "answer").write_text("open\n")
            if kind != "directory":
                where = one.work if kind == "repository" else one.path
                subprocess.run(["git", "-C", where, "init", "-q"], check=True)
            done = one.call(answer(1, "wrong"), "Answer", "--strategy", "race", "--attempts", "1", *VERIFY)
            text = done.stdout.decode()
            if done.returncode != 1 or "take it" not in text:
                raise AssertionError(done)
            links = one.path / "bin"
            links.mkdir()
            (links / "hearth").symlink_to(HEARTH)
            command = re.search(r"^take it +(.*)$", text, re.M)[1]
            taken = subprocess.run(["sh", "-c", command], capture_output=True, check=False, cwd="/", env=dict(
                os.environ, PATH=f"{links}:{os.environ['PATH']}", HEARTH_SCRIPT=str(one.path / "script.json")))
            assert taken.returncode == 0 and one.answer() == "wrong\n", (kind, command, taken)


def test_time_that_is_spent_is_its_own_status():
    cli_support.needs_sandbox()
    with Swarm() as one:
        turns = [shell(1, "trap '' TERM; sleep 100"), shell(2, "sleep 100")]
        begun = time.monotonic()
        done = one.call(turns, "Answer", "--strategy", "race", "--attempts", "2", "--max-time", "4s", *VERIFY)
        check(done, 4, out=r"(?m)^result +")
        assert time.monotonic() - begun < 60, done


def test_an_interrupt_ends_all_agents():
    cli_support.needs_sandbox()
    with Swarm() as one:
        turns = [shell(1, "touch started; sleep 100"), shell(2, "sleep 100")]
        process = one.start(turns, "Answer", "--strategy", "race", "--attempts", "2", *VERIFY)
        read_until(process, "agent-2 +running")
        time.sleep(1)  # in a call, or about to be
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, (out, err)
        assert b"result " in out and b"sessions show" in out, out
        one.check_nothing_is_left()


def test_agents_start_others_write_to_them_and_take_what_they_make():
    cli_support.needs_sandbox()

    def call(tool, **arguments):
        return {"agent": 1, "calls": [{"name": tool, "arguments": arguments}]}

    with Swarm() as one:
        turns = [call("spawn", task="Write the part", name="kid"), shell(1, "sleep 3"),
                 call("message", name="kid", message="Hurry\nup."), call("wait"), call("merge", name="kid"),
                 say(1, "It has made its part."),
                 shell(2, "sleep 20; echo right > answer"), say(2, "The part is there.")]
        done = check(one.call(turns, "Answer", "--strategy", "single", "--agent-tools", "on", *VERIFY), 0)
        text = done.stdout.decode()
        assert one.answer() == "right\n", text
        for part in (r" kid +starting +spawn of agent-1: Write the part$", r"^ +agent-1 to kid: Hurry$",
                     r" agent-1 +waiting +", r"^ +kid is merged into agent-1$", r"^ +agent-1 is merged into root$",
                     r"^agent-1 +passed +\d+ .* 1 line; merged$", r"^  kid +unverified .* merged into agent-1$",
                     r"^agents +2: 1 passed, 1 unverified$", r"^spent .*2 merges.*1\s+message$"):
            assert re.search(part, text, re.M), (part, text)
        session = re.search("sessions show ([0-9a-f-]+)", text)[1]
        tree = one.hearth("sessions", "show", session, "--tree")
        check(tree, 0, out=r"(?s)    kid \(spawn\).*merged into agent-1.*agent-1 to kid, read in turn \d: Hurry")
        # A model that does not know these tools has none.
        assert b"unknown" in one.call(turns[:1], "x", "--strategy", "single", "--json").stdout


def test_a_second_interrupt_ends_the_program_and_the_next_swarm_clears_up():
    cli_support.needs_sandbox()
    with Swarm() as one:

        seconds = f"600.{os.getpid():07}"  # nobody else sleeps so long

        def is_killed(command):
            """Not where the second signal was later than the end of what does not hear the first, two seconds."""
            process = one.start([shell(1, f"{command}; sleep {seconds}")], "Answer", "--strategy", "single")
            deadline = time.monotonic() + 60
            while ["sleep", seconds] not in commands():
                assert time.monotonic() < deadline and process.poll() is None, process
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            read_until(process, "once more to kill")
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
            assert process.returncode == 130, process.returncode
            return b"\nresult " not in out

        def kill(command):
            assert any(is_killed(command) for _ in range(4))

        kill("trap '' TERM INT")
        check(one.call(answer(1, "some"), "Answer", "--strategy", "single"), 0)  # looks for what is left
        check(one.hearth("sessions", "list"), 0, out="interrupted")
        kill("trap '' TERM INT; echo work > part")  # no snapshot has it
        process = one.start(answer(1, "some"), "Answer", "--strategy", "single")
        text = process.communicate(timeout=60)[0].decode()
        assert process.returncode == 0 and re.search(
            r"copies of killed swarms stay in .*/swarms, with work that nothing else has: .*agent-1", text), text
        [part] = (one.path / "state" / "swarms").rglob("agent-1/part")
        assert part.read_text() == "work\n"


def test_output_that_goes_nowhere_ends_it():
    cli_support.needs_sandbox()
    with Swarm() as one, open("/dev/full", "wb") as full:
        begun = time.monotonic()
        process = one.start([shell(1, "sleep 100")], "Answer", "--strategy", "single", stdout=full)
        err = process.communicate(timeout=90)[1].decode()
        assert process.returncode == 130 and time.monotonic() - begun < 60, (process.returncode, err)
        assert "cannot write to standard output: No space left" in err, err
        one.check_nothing_is_left()


# ---- forms -----------------------------------------------------------------------------------------


def test_json_has_an_event_a_line():
    cli_support.needs_sandbox()
    with Swarm() as one:
        turns = [*answer(1, "wrong"), *answer(2, "right")]
        done = check(one.call(turns, "Answer", "--attempts", "2", "--json", "--seed", "7", *VERIFY), 0)
        events = events_of(done)
        names = [event["event"] for event in events]
        assert names[0] == "swarm" and names[-1] == "swarm_finished", names
        begin, end = events[0], events[-1]
        assert begin["strategy"] == "race" and begin["attempts"] == 2 and begin["seed"] == 7, begin
        assert begin["verifier"] == VERIFY[1] and begin["session"] == end["session"], begin
        assert end["outcome"] == "passed" and end["merged"], end
        winner = end["agent"]
        loser = {"agent-1": "agent-2", "agent-2": "agent-1"}[winner]
        assert end["exit_status"] == 0 and end["agents"] == 2 and end["kept"] == [], end
        states = {}
        for event in events:
            if event["event"] == "agent":
                states.setdefault(event["agent"], []).append(event["outcome"] or event["state"])
        assert set(states) == {"agent-1", "agent-2"}, states
        for name in states:
            order = [state for i, state in enumerate(states[name]) if i == 0 or states[name][i - 1] != state]
            assert order.index("starting") < order.index("running") < len(order) - 1, order
        assert states[winner][-1] == "passed" and states[loser][-1] in ("failed", "unverified", "cancelled"), states
        last = [event for event in events if event["event"] == "agent" and event["agent"] == winner][-1]
        assert last["changed_lines"] == 1 and last["summary"] == "It is right." and last["calls"] == 1, last
        calls = [event for event in events if event["event"] == "tool_call"]
        assert {event["agent"] for event in calls} <= {"agent-1", "agent-2"} and calls, calls
        assert not [name for name in names if name in ("session", "finished", "changes")], names
        assert [event["merge"] for event in events if event["event"] == "merged"] == ["ok"], names


def test_a_terminal_has_a_tree_and_then_a_summary():
    cli_support.needs_sandbox()
    with Swarm() as one:
        turns = [shell(1, "sleep 5; echo right > answer"), say(1)]
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 80, 0, 0))
        environment = {"TERM": "xterm", "NO_COLOR": "1"}
        old = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            process = one.start(turns, "Answer", "--attempts", "1", "--strategy", "race", *VERIFY, stdout=follower)
        finally:
            for name, value in old.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        os.close(follower)
        seen = b""
        while select.select([leader], [], [], 60)[0]:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
        process.wait(timeout=60)
        os.close(leader)
        text = seen.decode()
        assert process.returncode == 0, text
        assert re.search(r"race \| 0:\d\d \| \d+ tokens \| 1 at work", text), text
        assert re.search(r"agent-1  running .*shell: sleep 5; echo right > answer", text), text
        assert "\x1b[" in text and "result     passed: that of agent-1" in text, text
        assert text.index("result     passed") > text.rindex("| 1 at work"), text
        one.check_nothing_is_left()


if __name__ == "__main__":
    sys.exit(cli_support.main(dict(globals())))
