#!/usr/bin/env python3
"""Runs on a copy of their workspace, to the end of the copy: test_worktree_runs.py HEARTH_SCRIPTED [NAME-PART]...

Helpers are those of test_interactive.py.
"""
import json
import os
import signal
import subprocess
import sys

import cli_support
from test_commands import begin, plain, record, session
from test_interactive import PROGRAM, call, say

WAY_HOME = "this takes it home:\nhearth: hearth sessions diff "


def copies_of(one):
    place = one.state / "worktrees"
    return sorted(place.iterdir()) if place.exists() else []


def work(one, *turns, arguments=("--worktree",), options=()):
    """One message to a run; what it said."""
    with one.run(list(turns), *arguments, "--cache", "off", *options) as run:
        run.wait("idle")
        begin(run, "go on")
        run.end()
    return run.error


def take_home(one, said):
    """What the run named, done by a shell that finds `hearth`."""
    command = said.split(WAY_HOME)[1].splitlines()[0]
    links = one.folder / "bin"
    links.mkdir(exist_ok=True)
    (links / "hearth").unlink(missing_ok=True)
    (links / "hearth").symlink_to(os.path.abspath(PROGRAM))
    environment = dict(os.environ, PATH=f"{links}:{os.environ['PATH']}", HEARTH_SCRIPT=str(one.folder / "script.json"))
    done = subprocess.run(["sh", "-c", f"hearth sessions diff {command}"], env=environment, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)


def test_a_copy_without_changes_goes_and_comes_back_with_its_session():
    cli_support.needs_sandbox()
    with session() as one:
        (one.work / "a").write_text("old\n")
        said = work(one, call("cat a"), say("seen"))
        assert "nothing was changed in the copy" in said and copies_of(one) == [], said
        shown = json.loads(plain(one, "sessions", "show", "--json")[1])
        assert shown["worktree_of"] == str(one.work), shown["worktree_of"]
        said = work(one, call("echo new > a"), say("done"), arguments=("--resume", "last"))
        assert WAY_HOME in said and [str(path) for path in copies_of(one)] == [shown["workspace"]], said
        assert (one.work / "a").read_text() == "old\n"
        work(one, say("more"), arguments=("--resume", "last"))  # the same directory as the time before
        assert (copies_of(one)[0] / "a").read_text() == "new\n"


def test_the_work_in_a_copy_is_taken_home_by_what_the_run_names():
    cli_support.needs_sandbox()
    for kind in ("repository", "directory", "inside another repository"):
        with session() as one:
            one.work = one.folder / "it's work"
            one.work.mkdir()
            (one.work / "a").write_text("old\n")
            if kind != "directory":
                where = one.work if kind == "repository" else one.folder
                subprocess.run(["git", "-C", where, "init", "-q"], check=True)
            said = work(one, call("echo new > a; mkdir d; echo 1 > 'd/b c'"),
                        call("printf '\\001\\000\\377' > binary"), say("done"))
            assert not (one.work / "d").exists()
            take_home(one, said)
            assert (one.work / "a").read_text() == "new\n" and (one.work / "d/b c").read_text() == "1\n", kind
            assert (one.work / "binary").read_bytes() == b"\1\0\377", kind


def test_a_copy_whose_work_was_lost_is_not_made_again():
    cli_support.needs_sandbox()
    with session() as one:
        (one.work / "a").write_text("old\n")
        work(one, call("echo new > a"), say("done"))
        subprocess.run(["rm", "-rf", copies_of(one)[0]], check=True)
        status, _, said = plain(one, "run", "--resume", "last", "more")
        assert status == 3 and "is gone" in said and copies_of(one) == [], said


def test_a_run_that_never_began_leaves_no_copy():
    with session() as one:
        (one.folder / "script.json").write_text('{"turns": []}')
        status, _, said = plain(one, "run", "a task", "-C", str(one.work), "--worktree", "--model", "/nowhere")
        assert status != 0 and copies_of(one) == [], said


def test_prune_removes_what_a_killed_run_left_without_changes():
    cli_support.needs_sandbox()
    with session() as one:
        (one.work / "a").write_text("old\n")
        work(one, call("echo new > a"), say("done"))
        dirty = copies_of(one)
        with one.run([say("hello"), say("again")], "--worktree", "--cache", "off") as run:
            run.wait("idle")
            begin(run, "one")
            status, _, said = plain(one, "sessions", "prune")
            assert status == 3 and len(copies_of(one)) == 2, said
            run.process.send_signal(signal.SIGKILL)
            run.process.wait()
        assert len(copies_of(one)) == 2
        status, text, said = plain(one, "sessions", "prune", "--dry-run")
        assert status == 0 and "would go: 1" in text and len(copies_of(one)) == 2, (text, said)
        status, text, said = plain(one, "sessions", "prune")
        assert status == 0 and "removed: 1" in text and f"stay: 1, {dirty[0].name}" in text, (text, said)
        assert copies_of(one) == dirty
        counted = json.loads(plain(one, "sessions", "prune", "--json")[1])
        assert (counted["copies_removed"], counted["copies_kept"]) == (0, 1), counted


def test_a_deleted_session_takes_its_snapshots_and_its_clean_copy_along():
    cli_support.needs_sandbox()
    with session() as one:
        (one.work / "a").write_text("old\n")
        work(one, call("echo new > a"), say("done"))
        kept = one.tree()["id"]
        work(one, call("echo secret > b"), call("rm b"), say("done"))
        gone = one.tree()
        fork = plain(one, "sessions", "fork", gone["id"], "--turn", "1")[1].split()[0]
        copies = copies_of(one)
        status, text, said = plain(one, "sessions", "delete")
        assert status == 2 and not text, said
        status, text, said = plain(one, "sessions", "delete", gone["id"])
        assert status == 5 and not text and fork in said and said.count("\n") == 1, said
        assert plain(one, "sessions", "delete", fork)[0] == 0
        assert copies_of(one) == copies  # the other session is still there
        status, text, said = plain(one, "sessions", "delete", gone["id"])
        assert status == 0 and text == f"deleted session {gone['id']}\n" and not said, (text, said)
        assert plain(one, "sessions", "show", gone["id"])[0] == 5
        stores = list((one.state / "snapshots").iterdir())
        counts = [sum(1 for path in store.rglob("objects/??/*")) for store in stores]
        assert any(counts) and plain(one, "sessions", "diff", kept)[0] == 0, counts
        assert "removed: 0 bytes" in plain(one, "sessions", "prune")[1], plain(one, "sessions", "prune")
        status, text, said = plain(one, "sessions", "delete", kept)
        assert status == 0 and "its copy of the workspace stays" in text and len(copies_of(one)) == 1, text
        assert not any(path for store in stores for path in store.rglob("objects/??/*"))
        assert (one.work / "a").read_text() == "old\n"


def test_undo_and_rewind_are_refused_in_a_directory_made_since():
    """With the words and the status of run --resume."""
    cli_support.needs_sandbox()
    with session() as one:
        recorded = record(one)
        if subprocess.check_output(["stat", "-c", "%W", one.work]).strip() in (b"0", b"-"):
            raise cli_support.Skipped("no times of birth here")
        cli_support.time.sleep(3.1)  # the clocks of file systems lag
        moved = one.folder / "moved"
        cli_support.shutil.copytree(one.work, moved)
        cli_support.shutil.rmtree(one.work)
        moved.rename(one.work)
        held = sorted(path.name for path in one.work.iterdir())
        for words in (["sessions", "undo", recorded], ["sessions", "rewind", recorded, "--turn", "0"],
                      ["run", "more", "--resume", recorded]):
            status, text, said = plain(one, *words)
            assert status == 3 and not text and "another directory now, made since; to go on there add -C" in said, said
            assert sorted(path.name for path in one.work.iterdir()) == held
            status, _, said = plain(one, *words, "-C", str(one.folder))
            assert status == 2 and "not in" in said, said
        status, text, said = plain(one, "sessions", "undo", "-C", str(one.work))
        assert status == 0 and sorted(path.name for path in one.work.iterdir()) != held, (text, said)
        one.work.rename(moved)
        one.work.symlink_to(moved)
        status, _, said = plain(one, "sessions", "undo", recorded)
        assert status == 3 and "is a link to" in said, said


if __name__ == "__main__":
    sys.exit(cli_support.main(globals()))
