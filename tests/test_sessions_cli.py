#!/usr/bin/env python3
"""Commands of sessions where something is wrong: test_sessions_cli.py HEARTH_SCRIPTED [NAME-PART]...

Strange ids, foreign and lost databases, places that cannot be written, full disks, workspaces that are gone:
one line, an exit status, and the session goes on once it is mended. Helpers are those of test_interactive.py.
"""
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys

import cli_support
from test_commands import begin, noise, plain, record, session, write
from test_interactive import PROGRAM, call, say

READS = (["list"], ["show"], ["diff"], ["prune", "--dry-run"])
WRITES = (["fork"], ["undo"], ["rewind", "--turn", "1"])


def refused(one, words, status, *parts):
    code, out, said = plain(one, *words)
    assert code == status and not out and said.count("\n") == 1, (words, code, out, said)
    assert all(part in said for part in parts), (words, said)


def goes_on(one):
    with one.run([say("back")], "--resume", "last", "--cache", "off") as run:
        run.wait("idle")
        begin(run, "go on")
        run.end()
    assert one.messages()[-1] == ("assistant", "back")


@contextlib.contextmanager
def mounted(path, *options):
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, path], stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise cli_support.Skipped("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def fill(path):
    subprocess.run(["sh", "-c", 'cat /dev/zero >"$0/fill"', path], stderr=subprocess.DEVNULL, check=False)


def test_strange_ids_are_refused_in_one_line():
    cli_support.needs_sandbox()
    with session() as one:
        record(one)
        for command in ("show", "diff", "fork", "undo", "rewind"):
            turn = ["--turn", "1"] if command == "rewind" else []
            for name in ("", "0", "x", "LAST", "../..", "a b", "%s%n", "' OR 1=1 --", "\x1b[31m", "f" * 5000):
                refused(one, ["sessions", command, name, *turn], 5, "session id")
            refused(one, ["sessions", command, "ffff", *turn], 5, "no session 'ffff'")
        refused(one, ["run", "--resume", "ffff"], 5, "no session 'ffff'")


def test_last_is_of_the_directory_one_stands_in():
    cli_support.needs_sandbox()
    with session() as one:
        first = record(one)
        mine, one.work = one.work, one.folder / "other"
        one.work.mkdir()
        second = record(one)

        def stand(place, *words):
            done = subprocess.run(
                [PROGRAM, *words, "--state", str(one.state)], cwd=place, capture_output=True, text=True,
                env=dict(os.environ, HEARTH_SCRIPT=str(one.folder / "script.json")), check=False)
            return done.returncode, done.stdout, done.stderr

        for place, wanted in (mine, first), (one.work, second):
            assert wanted in stand(place, "sessions", "show")[1]
            assert wanted in stand(place, "sessions", "show", "last", "--json")[1]
            assert f"forked from {wanted}" in stand(place, "sessions", "fork", "last")[1]
        for words in (["show"], ["undo"], ["rewind", "--turn", "0"], ["diff", "last"], ["fork"]):
            code, out, said = stand(one.folder, "sessions", *words)
            assert code == 5 and not out and f"no session of {one.folder} yet; the newest one is" in said, said
            assert str(one.work) in said and said.count("\n") == 1, said
        assert (one.work / "f1").exists() and (mine / "f1").exists()
        code, _, said = stand(one.folder, "run", "--resume", "last", "more")
        assert code == 5 and "the newest one is" in said, said
        (one.folder / "script.json").write_text('{"turns": [{"text": "Back."}]}')
        code, out, said = stand(one.folder, "run", "--resume", "last", "-C", str(mine), "more", "--json")
        assert code == 0 and f'"workspace":"{mine}"' in out, (out, said)


def test_a_mistyped_place_stays_as_it_is():
    with session() as one:
        (one.folder / "script.json").write_text('{"turns": []}')
        for words in (*WRITES, ["show"], ["diff"], ["prune"]):
            refused(one, ["sessions", *words], 5, "no sessions recorded yet")
        assert plain(one, "sessions", "list")[:2] == (0, "no sessions\n")
        assert not one.state.exists()


def test_a_database_of_a_newer_program_is_left_as_it_is():
    cli_support.needs_sandbox()
    with session() as one:
        record(one)
        with contextlib.closing(sqlite3.connect(one.state / "sessions.db")) as database:
            database.execute("PRAGMA user_version=99")
        kept = (one.state / "sessions.db").read_bytes()
        for words in (*READS, *WRITES, ["prune"]):
            refused(one, ["sessions", *words], 5, "newer Hearth", "99")
        refused(one, ["run", "--resume", "last"], 5, "newer Hearth")
        refused(one, ["run", "a task", "-C", str(one.work)], 5, "newer Hearth")
        assert (one.state / "sessions.db").read_bytes() == kept


def test_what_only_reads_works_where_nothing_can_be_written():
    cli_support.needs_sandbox()
    with session() as one:
        record(one)
        with mounted(one.state, "--bind", one.state):
            subprocess.run(["mount", "-o", "remount,ro,bind", one.state], check=True)
            for words in READS:
                status, text, said = plain(one, "sessions", *words)
                assert status == 0 and text and not said, (words, said)
            for words in (*WRITES, ["prune"]):
                refused(one, ["sessions", *words], 5, "cannot be written", "--state DIR")
            refused(one, ["run", "--resume", "last", "more"], 5, "cannot be written")
        goes_on(one)


def test_a_full_disk_ends_the_run_and_reading_and_pruning_go_on():
    cli_support.needs_sandbox()
    with session() as one, mounted(one.state, "-t", "tmpfs", "-o", "size=12m,mode=700", "tmpfs"):
        old = record(one)
        with one.run([call("echo 1 > a"), say("done"), noise("b", 100)], "--cache", "off") as run:
            run.wait("idle")
            begin(run, "one")
            fill(one.state)
            run.message("two")
            assert run.finish(5)["stop"] == "record"
        assert run.error.count("\n") == 1 and "disk is full" in run.error, run.error
        for words in READS:
            assert plain(one, "sessions", *words)[0] == 0, words
        refused(one, ["sessions", "undo", old], 5, "disk is full")
        refused(one, ["run", "--resume", "last", "more"], 5, "disk is full")
        status, text, said = plain(one, "sessions", "prune", "--max", "100K")
        assert status == 0 and old in text, (text, said)
        (one.state / "fill").unlink()
        goes_on(one)


def test_a_last_message_that_finds_no_room_is_told_before_the_end():
    """What the program ends with, its last event and the record agree."""
    with session() as one:
        disk = one.folder / "disk"
        option = ["--output-last-message", str(disk / "last")]
        says = f"cannot write {option[1]}: No space left on device"
        with mounted(disk, "-t", "tmpfs", "-o", "size=4k", "tmpfs"):
            with one.run([say("short")], *option) as run:
                begin(run, "one")
                run.end()
            assert (disk / "last").read_text() == "short"  # and there is no room for another
            with one.run([say("one more")], *option) as run:
                begin(run, "two")
                finished = run.end(5)
                assert (finished["stop"], finished["exit_status"], finished["detail"]) == ("quit", 5, says)
            assert run.error.count(says) == 1 and run.error.count("\n") == 1, run.error
            assert one.select("SELECT exit_status FROM session ORDER BY number") == [(0,), (5,)]
            assert (disk / "last").read_text() == "short" and os.listdir(disk) == ["last"]
            with one.run([], *option) as run:  # nothing is recorded
                run.wait("idle")
                (disk / "last").unlink()
                subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
                finished = run.end(5)
                assert finished["exit_status"] == 5 and "Read-only file system" in finished["detail"], finished


def test_a_database_that_is_deleted_under_a_run_is_written_again():
    cli_support.needs_sandbox()
    for whole in (False, True):
        with session() as one:
            with one.run([call("echo 1 > a"), say("done"), say("more")]) as run:
                run.wait("idle")
                begin(run, "one")
                if whole:
                    shutil.rmtree(one.state)
                else:
                    for path in one.state.glob("sessions.db*"):
                        path.unlink()
                run.message("two")
                assert run.finish(5)["stop"] == "record"
            assert run.error.count("\n") == 1 and "is there again" in run.error, run.error
            assert (one.state / "sessions.db").stat().st_mode & 0o777 == 0o600
            assert ("user", "one") in one.messages()
            goes_on(one)


def test_a_database_that_is_replaced_under_a_run_is_not_touched():
    cli_support.needs_sandbox()
    with session() as one:
        record(one)
        with one.run([say("done"), say("more")]) as run:
            run.wait("idle")
            begin(run, "one")
            shutil.copy(one.state / "sessions.db", one.folder / "copy")
            os.rename(one.folder / "copy", one.state / "sessions.db")
            kept = (one.state / "sessions.db").read_bytes()
            run.message("two")
            run.finish(5)
        assert run.error.count("\n") == 1 and "replaced" in run.error, run.error
        assert (one.state / "sessions.db").read_bytes() == kept


def test_snapshots_that_are_deleted_end_the_run_and_are_begun_anew():
    cli_support.needs_sandbox()
    with session() as one:
        with one.run([call("echo 1 > a"), say("done"), call("echo 2 > a")]) as run:
            run.wait("idle")
            begin(run, "one")
            shutil.rmtree(one.state / "snapshots")
            run.message("two")
            run.finish(5)
        assert run.error.count("\n") == 1 and "snapshot" in run.error, run.error
        refused(one, ["sessions", "diff"], 5, "no snapshot store")
        goes_on(one)
        refused(one, ["sessions", "undo"], 5, "not there any more")


def test_a_workspace_that_is_gone_leaves_what_needs_it_undone():
    cli_support.needs_sandbox()
    with session() as one:
        gone = record(one)
        shutil.rmtree(one.work)
        assert "f1" in plain(one, "sessions", "diff", gone, "--stat")[1]
        assert plain(one, "sessions", "show", gone)[0] == 0
        for words in (["undo", gone], ["rewind", gone, "--turn", "1"]):
            refused(one, ["sessions", *words], 3, str(one.work), "is gone", "if it was moved, add -C DIR")
        refused(one, ["run", "--resume", gone, "more"], 3, str(one.work), "is gone", "if it was moved, add -C DIR")
        assert plain(one, "sessions", "fork", gone)[0] == 0
        one.work.mkdir()
        goes_on(one)


def test_a_workspace_that_was_moved_is_named_and_goes_on():
    cli_support.needs_sandbox()
    with session() as one:
        old = record(one)
        moved = one.folder / "moved"
        one.work.rename(moved)
        code, _, said = plain(one, "run", "--resume", old, "-C", str(one.folder / "none"), "more")
        assert code == 2 and "none: No such file" in said, said
        place = ["-C", str(moved)]
        assert plain(one, "sessions", "undo", old, *place)[:2] == (0, "1 file put back\n")
        assert not (moved / "f1").exists() and (moved / "f0").exists()
        with one.run([write("new", "1\n"), say("on"), write("other", "2\n"), say("anew")],
                     "--resume", old, *place) as run:
            run.wait("idle")
            begin(run, "go on")
            run.send("command", command="undo")
            run.wait("note", text="1 file put back")
            assert not (moved / "new").exists()
            run.send("command", command="clear")
            run.wait("finished")
            run.wait("idle")
            begin(run, "a new session")
            run.end()
        # The session keeps its snapshots, the new one has its own.
        assert plain(one, "sessions", "diff", old, "--stat")[1].startswith("f0\t")
        one.work = moved
        assert plain(one, "sessions", "diff", "last", "--stat")[1] == "other\t+1 -0\n"
        assert plain(one, "sessions", "undo", "last")[:2] == (0, "1 file put back\n")
        assert plain(one, "sessions", "rewind", old, "--turn", "0", *place)[0] == 0
        assert not (moved / "f0").exists()
        # Where the directory is, another one beside it is not taken.
        (one.folder / "work").mkdir()
        for words in (["sessions", "undo", old], ["run", "--resume", old, "more"]):
            code, _, said = plain(one, *words, *place)
            assert code == 2 and "works in" in said and "not in" in said, said


TREE = """\
swarm     race, passed, merged, 0.0 s
chosen    there is a verifier
verifier  python3 tests.py
result    fork-1 passed

agent                                            turns    tokens  calls  seconds
main                        done                     1        12      1      0.0
  fork-1 (fork)             passed                   1         0      0      0.0
      task: Fix a.py
      3 lines changed, score 0.75, merged into main
      verifier: pass
      said: a.py is fixed
  helper (spawn)            answer                   1         0      0      0.0
      task: Fix b.py \ufffd
      cut: its deadline
      3 lines changed, not merged: conflicts
      said: a.py is fixed

mail
  fork-1 to helper, read in turn 1: Is b.py yours?
  fork-1 to helper, never read: and c.py?
  helper to main, never read: yes
"""


def test_tree_shows_who_did_what():
    with session() as one:
        (one.folder / "script.json").write_text('{"turns": []}')
        one.state.mkdir(mode=0o700, exist_ok=True)
        database = one.state / "sessions.db"
        shutil.copy(cli_support.ROOT / "tests/corpus/fuzz_sessions/version-5.db", database)
        with contextlib.closing(sqlite3.connect(database)) as store:
            ids = [row[0] for row in store.execute("SELECT id FROM session ORDER BY number")]
        status, text, said = plain(one, "sessions", "show", ids[0], "--tree")
        assert status == 0 and not said and text.endswith("\n\n" + TREE), (said, text)
        status, text, said = plain(one, "sessions", "show", ids[1], "--tree")
        assert status == 0 and "race, interrupted" in text and "lost" in text and "never read" not in text
        assert "(rewound" not in plain(one, "sessions", "show", ids[0])[1]
        # What an agent made is in the snapshots, which this state directory has none of.
        for name, why in (("nobody", "has no agent 'nobody'"), ("main", "has no agent 'main'"), ("fork-1", "")):
            status, text, said = plain(one, "sessions", "diff", ids[0], "--agent", name)
            assert status == 5 and not text and why in said and said.count("\n") == 1, (status, said)
        assert plain(one, "sessions", "diff", ids[0], "--agent", "fork-1", "--turn", "1")[0] == 2
        # Whatever agents are called, it stays in 80 columns; parents in a circle end.
        with contextlib.closing(sqlite3.connect(database)) as store:
            store.execute("UPDATE agent SET name = ?", ("\u6f22\x1b[31m\n" * 90,))
            store.execute("UPDATE node SET brief = ?, detail = ?, ending = 'fault'", (b"\xff" * 900, b"x\0" * 900))
            store.execute("UPDATE mail SET text = ?", (b"y" * 5000,))
            store.execute("UPDATE agent SET parent = (SELECT max(number) FROM agent b WHERE b.session = agent.session)")
            store.commit()
        status, text, said = plain(one, "sessions", "show", ids[0], "--tree")
        rows = text.split("\n\n", 1)[1].splitlines()
        assert status == 0 and not said and "\x1b" not in text and len(rows) > 15, (said, text)
        assert max(map(len, rows)) <= 80, max(rows, key=len)


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
