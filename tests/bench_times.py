#!/usr/bin/env python3
"""Whether what is promised of times holds on this machine (key to echo apart, see test_terminal.py):
bench_times.py BUILD/tests/hearth_scripted [NAME-PART]... with the benches of the same release build. No test of
ctest: on a machine that is busy times say nothing.
"""
import pathlib
import re
import subprocess
import sys
import time

import cli_support
import test_terminal
from cli_support import HEARTH
from test_interactive import say

BUILD = pathlib.Path(HEARTH).parent.parent
TRIES = 8


def measure(program, *arguments, rows):
    """The numbers in those rows of a bench's output."""
    if cli_support.is_slow_build():
        raise cli_support.Skipped("times of a build with sanitizers say nothing")
    done = subprocess.run([BUILD / program, *arguments], stdout=subprocess.PIPE, check=True, timeout=300)
    found = re.findall(rf"^({'|'.join(rows)})(.*)$", done.stdout.decode(), re.M)
    assert [name for name, _ in found] == list(rows), done.stdout
    return [[float(number) for number in re.findall(r"\d+\.\d+", line)] for _, line in found]


def test_the_sandbox_adds_at_most_30_ms_to_a_spawn():
    cli_support.needs_sandbox()
    added = []
    while len(added) < TRIES and min(added, default=99) > 30:
        rows = ("posix_spawn sh -c true", "sandboxed call of sh -c true")
        (_, plain, _), (_, confined, _) = measure("examples/bench_sandbox", "30", rows=rows)  # the 10th percentile
        added.append(confined - plain)
    print(f"a call adds {min(added):.1f} ms, the best of {len(added)}")
    assert min(added) <= 30, added


def test_a_snapshot_of_ten_thousand_files_takes_at_most_600_ms_after_the_first():
    times = []
    while len(times) < TRIES and min(times, default=999) > 600:
        rows = ("nothing changed", "five files changed")
        times.append(max(numbers[0] for numbers in measure("tests/bench_snapshot", "10000", "5", rows=rows)))
    print(f"a snapshot takes {min(times):.0f} ms, the best of {len(times)}")
    assert min(times) <= 600, times


def test_the_prompt_is_there_after_at_most_200_ms_without_a_model_to_load():
    times = []
    with test_terminal.Place() as place:
        while len(times) < TRIES and min(times, default=999) > 200:
            begin = time.monotonic()
            with test_terminal.Terminal(place, place.command(), [say("x")]) as terminal:
                terminal.wait(b"waiting | ")
                times.append((time.monotonic() - begin) * 1000)
                terminal.send(b"\x04")
                terminal.ended()
    print(f"start to prompt: {min(times):.0f} ms, the best of {len(times)}")
    assert min(times) <= 200, times


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
