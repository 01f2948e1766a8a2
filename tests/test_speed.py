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


def numbers(program, *arguments, row):
    """Those in the row of a bench's output."""
    if cli_support.is_slow_build():
        raise cli_support.Skipped("times of a build with sanitizers say nothing")
    done = subprocess.run([BUILD / program, *arguments], stdout=subprocess.PIPE, check=True, timeout=300)
    [line] = re.findall(rf"^{row}(.*)$", done.stdout.decode(), re.M)
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def test_the_sandbox_adds_at_most_30_ms_to_a_spawn():
    cli_support.needs_sandbox()
    added = []
    while len(added) < TRIES and min(added, default=99) > 30:
        _, quick, _ = numbers("examples/bench_sandbox", "30", row="sandboxed call of sh -c true")
        _, plain, _ = numbers("examples/bench_sandbox", "10", row="posix_spawn sh -c true")
        added.append(quick - plain)
    print(f"a call adds {min(added):.1f} ms, the best of {len(added)}")
    assert min(added) <= 30, added


def test_a_snapshot_of_ten_thousand_files_takes_at_most_600_ms_after_the_first():
    for row in ("nothing changed", "five files changed"):
        times = []
        while len(times) < TRIES and min(times, default=999) > 600:
            times.append(numbers("tests/bench_snapshot", "10000", "5", row=row)[0])
        print(f"{row}: {min(times):.0f} ms, the best of {len(times)}")
        assert min(times) <= 600, (row, times)


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
