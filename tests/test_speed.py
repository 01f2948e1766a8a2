#!/usr/bin/env python3
"""What is promised of times, beside test_terminal.py (key to echo) and test_promises.py (start to prompt):
test_speed.py HEARTH [NAME-PART]... with the benches of the same build.

A busy machine only adds: the best of several counts, and it is tried until one is good.
"""
import pathlib
import re
import subprocess
import sys

import cli_support
from cli_support import HEARTH

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


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
