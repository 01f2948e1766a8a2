#!/usr/bin/env python3
"""Runs that are cut short: test_cli_stops.py HEARTH [NAME-PART]...

By budgets, signals, a second instance, lost outputs and disks.
"""
import json
import os
import re
import shutil
import signal
import sys
import time

from cli_support import (
    GREEDY, HEARTH, SLOW_TASK, Scratch, check, event_of, hearth, in_mount_namespace, is_slow_build, main,
    needs_sandbox)


def test_budgets_stop_with_status_4():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        check(scratch.run(task["prompt"], *GREEDY, "--max-tokens", "20"), 4, out="token budget spent")
        check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "1"), 4, out="turn limit reached")
        assert scratch.tree()["stop_reason"] == "turns"


def test_time_budget_in_a_prompt_keeps_what_was_read():
    needs_sandbox()
    with Scratch() as scratch:
        words = " ".join(f"word{i * 7919 % 10007}" for i in range(1900))
        turns = []
        for budget in (4, 16, 64) if is_slow_build() else (0.7, 2, 8, 32):  # on a busy machine a start takes longer
            ran = scratch.run(words, *GREEDY, "--cache", "off", "--threads", "1", "--max-time", f"{budget}s")
            check(ran, 4, out="time budget spent")
            turns = scratch.tree()["agents"][0]["turns"]
            if turns and turns[0]["token_runs"]:
                break
        turn = turns[0]
        assert turn["is_finished"] and turn["stop_reason"] in ("cancelled", "deadline"), turn
        cache = turn["cache"]
        read = cache["evaluated_tokens"] + cache["reused_tokens"]
        assert read == cache["prompt_tokens"] < turn["token_runs"][0]["count"], turn
        scratch.check_database()


def test_time_budget_ends_a_running_command():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.slow(300)
        for budget in (40, 120) if is_slow_build() else (8, 60):  # enough to come to the command
            started = time.monotonic()
            check(scratch.run(SLOW_TASK, *GREEDY, "--max-time", f"{budget}s"), 4,
                  out="time budget spent")
            seconds = time.monotonic() - started
            if (scratch.work / "started").exists():
                break
        assert (scratch.work / "started").exists()
        # one second and the kill grace of two; the rest is for a busy machine
        assert budget <= seconds < budget + 12, seconds
        assert scratch.tree()["stop_reason"] == "time"


def test_time_budget_ends_the_snapshot_of_a_large_workspace():
    with Scratch() as scratch:
        for folder in range(50):
            (scratch.work / str(folder)).mkdir(parents=True)
            for name in range(400):
                (scratch.work / str(folder) / str(name)).write_text(f"{folder} {name}\n")
        started = time.monotonic()
        ran = scratch.run("List the files.", *GREEDY, "--max-time", "0.2s")
        seconds = time.monotonic() - started
        check(ran, 4, out="what changed is not known")
        assert seconds < 20, seconds
        assert scratch.tree()["stop_reason"] == "time"


def test_interrupt_stops_cleanly_and_keeps_everything():
    needs_sandbox()
    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
        with Scratch() as scratch:
            scratch.slow(300)
            process = scratch.start(SLOW_TASK)
            scratch.wait_for_tool(process)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            assert process.returncode == 130, (process.returncode, out, err)
            assert b"interrupted" in out, out
            scratch.check_command_is_gone()
            tree = scratch.tree()
            assert tree["status"] == "stopped", tree["status"]
            assert tree["stop_reason"] == "interrupt"
            calls = tree["agents"][0]["turns"][0]["calls"]
            assert calls[0]["status"] == "cancelled", calls
            scratch.check_database()


def is_killed_by_a_second_interrupt():
    """Whether it did not come to the end that its command makes of the first one, in the time that it has for it."""
    with Scratch() as scratch:
        (scratch.work / "tests.py").write_text(
            "import signal, time\ndef end(*unused):\n    time.sleep(1.5)\n    open('ended', 'w').close()\n"
            "    time.sleep(300)\n"
            "signal.signal(signal.SIGTERM, end)\nopen('started', 'w').close()\ntime.sleep(300)\n")
        process = scratch.start(SLOW_TASK)
        scratch.wait_for_tool(process)
        process.send_signal(signal.SIGINT)
        while b"once more to kill" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130, process.returncode
        scratch.check_database()
        return not (scratch.work / "ended").exists()


def test_second_interrupt_ends_at_once():
    needs_sandbox()
    # Once of some times: on a loaded machine the second signal may be late.
    assert any(is_killed_by_a_second_interrupt() for _ in range(4))


def test_kill_loses_no_finished_step():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.slow(300)
        (scratch.work / "note.txt").write_text("x")
        process = scratch.start(SLOW_TASK, "--json")
        scratch.wait_for_tool(process)
        process.kill()
        out, _ = process.communicate(timeout=60)
        events = [event_of(line) for line in out.splitlines()]
        scratch.check_command_is_gone()
        scratch.check_database()
        tree = scratch.tree("--tokens")
        turn = tree["agents"][0]["turns"][0]
        reasoning = "".join(e["text"] for e in events if e["event"] == "reasoning")
        assert [m["role"] for m in turn["messages"]] == ["system", "user", "assistant"], turn
        assert turn["messages"][2]["reasoning"].strip() == reasoning.strip()
        call = next(e for e in events if e["event"] == "tool_call")
        assert turn["calls"][0]["name"] == call["name"]
        # The next writer marks what was left open, and works.
        scratch.slow(0)
        check(scratch.run(SLOW_TASK, *GREEDY, "--max-turns", "2"), 4)
        listed = hearth("sessions", "list", "--state", scratch.state, "--json").stdout.splitlines()
        assert [json.loads(line)["status"] for line in listed] == ["stopped", "interrupted"], listed


def test_kill_at_any_moment_leaves_a_sound_database():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        for milliseconds in [60, 150, 300, 450, 700]:
            process = scratch.start(task["prompt"])
            time.sleep(milliseconds / 1000)
            process.kill()
            process.communicate(timeout=60)
            if os.path.exists(scratch.state + "/sessions.db"):
                check(hearth("doctor", "--state", scratch.state), 0,
                      out="database sound|nothing recorded yet")


def test_second_instance_is_refused_and_readers_work_beside():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.slow(300)
        process = scratch.start(SLOW_TASK)
        try:
            scratch.wait_for_tool(process)
            done = check(scratch.run("x"), 3, err=r"--state DIR")
            assert str(process.pid).encode() in done.stderr, done.stderr
            check(hearth("sessions", "list", "--state", scratch.state), 0, out="running")
            check(hearth("sessions", "show", "--state", scratch.state), 0, out="> shell")
            check(hearth("doctor", "--state", scratch.state), 0)
            other = str(scratch.path / "other")
            check(hearth("run", "x", "-C", str(scratch.work), "--state", other), 3,
                  err="another command is running in workspace")
            elsewhere = scratch.path / "elsewhere"
            elsewhere.mkdir()
            check(hearth("run", SLOW_TASK, "-C", str(elsewhere), "--state", other, *GREEDY,
                         "--max-tokens", "5"), 4)
        finally:
            process.kill()
            process.communicate(timeout=60)


def test_closed_output_stops_the_run():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        process = scratch.start(task["prompt"], "--json")
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 130, process.returncode
        process.stderr.close()
        assert scratch.tree()["status"] == "stopped"


# ---- disks ---------------------------------------------------------------------------------------


def test_read_only_state_is_one_clear_line():
    with Scratch() as scratch:
        state = scratch.path / "disk" / "state"
        state.parent.mkdir()
        done = in_mount_namespace(
            f"mount -t tmpfs -o ro tmpfs {state.parent} && "
            f"exec {HEARTH} run x -C {scratch.work} --state {state}")
        check(done, 5, err="^hearth: .*(ead-only|annot)")
        assert done.stderr.count(b"\n") == 1, done.stderr


def test_full_disk_is_a_clean_stop():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        disk = scratch.path / "disk"
        disk.mkdir()
        statuses = set()
        for kibibytes in [16, 64, 200, 300, 400, 600, 1000]:
            shutil.rmtree(scratch.work)
            scratch.work.mkdir()
            scratch.demo()
            done = in_mount_namespace(
                f"mount -t tmpfs -o size={kibibytes}k tmpfs {disk} && "
                f"exec {HEARTH} run '{task['prompt'].replace(chr(96), '')}' -C {scratch.work} "
                f"--state {disk}/state --temperature 0 --effort 50")
            statuses.add(done.returncode)
            assert done.returncode in [0, 5], done
            assert done.returncode == 0 or re.search(rb"^hearth: ", done.stderr, re.M), done
        assert 5 in statuses, statuses


if __name__ == "__main__":
    sys.exit(main(globals()))
