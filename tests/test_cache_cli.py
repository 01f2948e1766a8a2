#!/usr/bin/env python3
"""hearth cache as a user calls it: test_cache_cli.py HEARTH KV_DISK_MAKE [NAME-PART]...

KV_DISK_MAKE fills a cache with known blocks; no model is needed. Output follows cmocka's, so that
tests/summarize.py counts it.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

HEARTH, MAKE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
FOLDER = "ab00000000000000"
STRIDE = 5824  # of blocks of 5,000 bytes


class Cache:
    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="hearth-cache-")
        self.path = pathlib.Path(self.scratch.name)
        self.state = self.path / "state"
        self.state.mkdir()
        self.key = None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.scratch.cleanup()

    def fill(self, texts=3, *description):
        done = subprocess.run([MAKE, self.state / "cache", str(texts), *description],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
        self.key = done.stdout.decode().split()[-1]

    def hold(self):
        process = subprocess.Popen([MAKE, self.state / "cache", "0", "HOLD"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        return process

    def run(self, *words, status=0, out=(), err=()):
        command = [HEARTH, "cache", *map(str, words), "--state", str(self.state)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)
        what = f"{command}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        assert done.returncode == status, what
        for part in [out] if isinstance(out, str) else out:
            assert part in done.stdout.decode(), f"no '{part}' in {what}"
        for part in [err] if isinstance(err, str) else err:
            assert part in done.stderr.decode(), f"no '{part}' in {what}"
        return done.stdout.decode()

    def rows(self, *words, **options):
        return [json.loads(line) for line in self.run(*words, "--json", **options).splitlines()]

    def segment(self):
        return self.state / "cache" / FOLDER / "seg-00000001.data"

    def flip(self, offset):
        content = bytearray(self.segment().read_bytes())
        content[offset] ^= 16
        self.segment().write_bytes(content)


def test_nothing_is_cached_yet():
    with Cache() as cache:
        cache.run("show", out="nothing is cached")
        assert cache.rows("show") == []
        cache.run("verify")
        cache.run("evict", "--all")
        cache.run("export", cache.path / "file", status=2, err="nothing is cached")
        cache.run("show", "--model", "x", status=5, err="no folder is named or made by 'x'")
        assert not (cache.path / "file").exists()


def test_show_tells_blocks_age_and_budget():
    with Cache() as cache:
        cache.fill()
        cache.run("show", out=[FOLDER, "a model of tests, cpu", "18 blocks of 5000 bytes, 2304 tokens",
                               "root lineage ab00", "last used", "0 damaged",
                               f"all: {(4096 + 18 * STRIDE) / 1024:.1f} KiB on disk, of ",
                               "that the last run allowed, in 1 folders"])
        row, = cache.rows("show", "--model", "of tests")
        assert row["blocks"] == 18 and row["tokens"] == 2304 and row["trouble"] is None
        assert row["bytes"] == 4096 + 18 * STRIDE and row["bytes_max"] > row["bytes"]
        assert row["used_by"] == 0 and row["evicted"] == row["damaged"] == 0
        cache.run("show", "--model", "another", status=5, err="another")


def test_text_of_the_folder_cannot_command_the_terminal():
    with Cache() as cache:
        cache.fill(1, "bad \x1b]0;owned\x07 name")
        assert "\x1b" not in cache.run("show", out="bad")
        assert "\x1b" not in cache.run("show", "--json")


def test_show_works_beside_a_run_and_the_rest_is_refused():
    with Cache() as cache:
        cache.fill()
        holder = cache.hold()
        try:
            cache.run("show", out=f"in use by process {holder.pid}")
            cache.run("verify", out="18 records")
            cache.run("export", cache.path / "file", out="18 blocks")
            busy = f"in use by process {holder.pid}"
            cache.run("evict", "--all", status=3, err=busy)
            cache.run("verify", "--repair", status=3, err=busy)
            cache.run("import", cache.path / "file", status=3, err=busy)
        finally:
            holder.communicate()
        assert cache.rows("show")[0]["blocks"] == 18


def test_verify_names_damage_and_repair_removes_it():
    with Cache() as cache:
        cache.fill()
        cache.run("verify", out="18 records")
        cache.flip(4096 + 4 * STRIDE + 900)
        cache.run("verify", status=5, out="17 records", err="seg-00000001.data: record 4 is damaged")
        row, = cache.rows("verify", "--repair", status=5)
        assert (row["damaged"], row["repaired"]) == (1, 1)
        cache.run("verify", out="17 records")
        row, = cache.rows("show")
        assert row["blocks"] == 17 and row["damaged"] == 1


def test_evict_by_age_size_and_all():
    with Cache() as cache:
        cache.fill()
        cache.run("evict", status=2, err="--older TIME, --to SIZE or --all")
        cache.run("evict", "--older", "soon", status=2, err="--older")
        cache.run("evict", "--to", "much", status=2, err="--to")
        cache.run("evict", "--older", "48h", out="0 blocks removed")
        cache.run("evict", "--to", str(4096 + 10 * STRIDE), out="8 blocks removed")
        row, = cache.rows("show")
        assert row["blocks"] == 10 and row["evicted"] == 8
        assert cache.rows("evict", "--all")[0]["removed"] == 10
        assert cache.rows("show")[0]["blocks"] == 0


def test_prefix_moves_to_another_state():
    with Cache() as here, Cache() as there:
        here.fill()
        file = here.path / "file"
        here.run("export", file, "--keys", here.key, out="4 blocks")
        here.run("export", file, status=5, err="File exists")
        here.run("export", here.path / "g", "--keys", "abc", status=5, err="'abc' is no key")
        there.run("import", file, status=5, err=[f"is of root lineage {FOLDER}", "has none"])
        there.state.rmdir()  # a machine that never ran anything
        there.run("import", file, "--new", out="4 blocks")
        assert there.state.stat().st_mode & 0o777 == 0o700
        there.run("show", out="(unknown model)")
        there.fill(0)
        there.run("show", out=["a model of tests", "4 blocks"])
        row, = there.rows("import", file)
        assert (row["added"], row["present"]) == (0, 4)
        there.run("verify", out="4 records")
        content = bytearray(file.read_bytes())
        content[4096 + 2 * STRIDE + 1000] ^= 1
        (here.path / "damaged").write_bytes(content[:-100])
        there.run("evict", "--all")
        there.run("import", here.path / "damaged", status=5, out=["2 added", "2 damaged"])
        there.run("import", "/dev/null", status=5, err="is not a file")
        there.run("import", here.segment(), status=5, err="is no file of 'hearth cache export'")
        there.run("import", here.path / "missing", status=5, err="No such file")
        there.run("import", status=2)


def main():
    wanted = sys.argv[3:]
    tests = [(name[5:], call) for name, call in sorted(globals().items())
             if name.startswith("test_") and all(part in name for part in wanted)]
    print(f"[==========] Running {len(tests)} test(s).")
    failed = []
    for name, call in tests:
        print(f"[ RUN      ] {name}", flush=True)
        try:
            call()
            print(f"[       OK ] {name}", flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(name)
            print(f"[  FAILED  ] {name}", flush=True)
    print(f"[==========] {len(tests)} test(s) run, {len(failed)} failed, 0 skipped.")
    sys.exit(1 if failed else 0)


main()
