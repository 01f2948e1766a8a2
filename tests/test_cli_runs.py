#!/usr/bin/env python3
"""Whole runs of the bundled model: test_cli_runs.py HEARTH [NAME-PART]...

What a run does, samples, records and keeps in its cache.
"""
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys

from cli_support import GREEDY, HEARTH, MINI, ROOT, Scratch, check, damaged_model, event_of, hearth, main, needs_sandbox


def test_run_fixes_a_bug_and_shows_it():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        done = check(scratch.run(task["prompt"], *GREEDY), 0, out=r"\n1 file changed, 1 line added")
        assert b"\ndone: the model ended with an answer\n" in done.stdout
        assert b"\x1b" not in done.stdout
        check(hearth("sandbox", "run", "-C", str(scratch.work), "--", "sh", "-c",
                     task["test_command"]), 0)
        tree = scratch.tree("--tokens")
        assert tree["status"] == "done", tree
        scratch.check_database()


def test_run_takes_the_task_from_standard_input():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        check(scratch.run(*GREEDY, text=task["prompt"] + "\n"), 0)


def test_a_run_needs_no_terminal_and_no_environment():
    """As in CI: nothing is set, nothing is read, and the status, the events and a file say what came of it."""
    needs_sandbox()
    with Scratch() as scratch:
        task, last = scratch.demo(), scratch.path / "last"
        done = subprocess.run(
            [HEARTH, "run", task["prompt"], *GREEDY, "--state", scratch.state, "--json", "--max-time", "10m",
             "--output-last-message", str(last)],
            env={}, cwd=scratch.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, timeout=600)
        check(done, 0)
        assert done.stderr == b"", done.stderr
        events = [event_of(line) for line in done.stdout.splitlines()]
        assert (events[-1]["event"], events[-1]["exit_status"]) == ("finished", 0), events[-1]
        assert last.read_text() == "".join(e["text"] for e in events if e["event"] == "content" and
                                           e["turn"] == events[-1]["turns"]), last.read_text()


def without_volatile_lines(text):
    return [line for line in text.decode().splitlines() if not line.startswith("#")]


def test_equal_runs_write_equal_lines():
    needs_sandbox()
    texts = []
    for threads in ["1", "2"]:
        with Scratch() as scratch:
            task = scratch.demo()
            done = check(scratch.run(task["prompt"], *GREEDY, "--threads", threads), 0)
            texts.append(without_volatile_lines(done.stdout))
    assert texts[0] == texts[1]


def test_same_seed_samples_the_same_text():
    needs_sandbox()
    texts = []
    for _ in range(2):
        with Scratch() as scratch:
            task = scratch.demo()
            done = scratch.run(task["prompt"], "--temperature", "1", "--seed", "7", "--max-turns", "2")
            texts.append(without_volatile_lines(done.stdout))
    assert texts[0] == texts[1]


def test_sampling_defaults_come_from_the_model():
    needs_sandbox()
    with Scratch() as scratch:
        def sampling(*arguments):
            done = scratch.run("x", "--max-tokens", "1", "--json", *arguments)
            events = [event_of(line) for line in done.stdout.splitlines()]
            session = next(event for event in events if event["event"] == "session")
            return session["temperature"], session["top_p"]
        known = json.loads((MINI / "model" / "generation_config.json").read_text())
        assert sampling() == (known["temperature"], known["top_p"])
        model = damaged_model(scratch, "generation_config.json", None)
        assert sampling("--model", model) == (1.0, 0.95)
        model = damaged_model(scratch, "generation_config.json", b'{"top_p": 0.5}')
        assert sampling("--model", model) == (1.0, 0.5)
        assert sampling("--model", model, "--temperature", "0.25", "--top-p", "0.75") == (0.25, 0.75)


def settings_of(scratch):
    return scratch.tree()["sampler"]["settings"]


def test_settings_are_recorded_shown_and_go_on():
    needs_sandbox()
    given = ["--top-k", "40", "--min-p", "0.01", "--repetition-penalty", "1.05", "--seed", "3",
             "--presence-penalty", "0.5", "--frequency-penalty", "-0.25", "--stop", "no such text",
             "--stop", "a\nb", "--logit-bias", "5=2.5,9=never", "--logit-bias", "5=-1",
             "--max-thinking", "900", "--max-call", "off", "--max-repeats", "8"]
    wanted = {
        "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.05, "presence_penalty": 0.5,
        "frequency_penalty": -0.25, "stop": ["no such text", "a\nb"], "logit_bias": "5=-1,9=never",
        "max_thinking": 900, "max_call": 0, "max_repeats": 8}
    with Scratch() as scratch:
        task = scratch.demo()
        done = check(scratch.run(task["prompt"], *given, "--max-tokens", "6", "--json"), 4)
        events = [event_of(line) for line in done.stdout.splitlines()]
        session = next(event for event in events if event["event"] == "session")
        assert session["settings"] == wanted == settings_of(scratch), session
        shown = hearth("sessions", "show", "--state", scratch.state).stdout.decode()
        assert re.search(
            r'^settings  --top-k 40 --max-thinking 900 --max-call off --max-repeats 8 --min-p 0\.01 .*'
            r'--logit-bias 5=-1,9=never --stop "no such text" --stop "a\\nb"$',
            shown, flags=re.M), shown
        assert " now: " not in shown, shown
        # What is not given goes on; what is given replaces.
        again = ["run", "--resume", "last", "--max-tokens", "6", "--state", scratch.state]
        check(hearth(*again, "--top-k", "7", "--logit-bias", "6=1", "--max-call", "50"), 4)
        turn = scratch.tree()["agents"][0]["turns"][-1]
        changed = dict(wanted, top_k=7, logit_bias="6=1", max_call=50)
        assert turn["sampler"]["settings"] == changed, turn["sampler"]
        shown = hearth("sessions", "show", "--state", scratch.state).stdout.decode()
        assert len(re.findall(r"^  settings now: --top-k 7 .*--max-call 50 .*--logit-bias 6=1 ",
                              shown, flags=re.M)) == 1, shown
        check(hearth(*again), 4)
        assert scratch.tree()["agents"][0]["turns"][-1]["sampler"]["settings"] == changed


def test_sessions_show_tells_drafts_preemption_and_the_seed_of_a_fork():
    needs_sandbox()
    with Scratch() as scratch:
        check(scratch.run("Say it.", *GREEDY, "--max-tokens", "4", "--seed", "9"), 4)
        database = sqlite3.connect(scratch.state + "/sessions.db")
        with database:
            database.execute("UPDATE turn SET drafted = 120, accepted = 88, preempted = 2,"
                             " fork_index = 1, parent_seed = 5, stop_detail = 'a\x1b[31mb'")
        database.close()
        shown = hearth("sessions", "show", "--state", scratch.state).stdout.decode()
        assert re.search(r"^usage .* 4 written; drafted 120, accepted 88$", shown, flags=re.M), shown
        assert re.search(r'^turn 1: .*ended: length "a.*b"; drafted 120, accepted 88; '
                         r"pre-empted 2 times; seed 9 of fork 1 of 5$", shown, flags=re.M), shown
        assert "\x1b" not in shown, shown
        turn = scratch.tree()["agents"][0]["turns"][0]
        assert turn["drafted"] == 120 and turn["accepted"] == 88 and turn["preempted"] == 2, turn
        assert turn["parent_seed"] == 5 and turn["fork_index"] == 1, turn


def test_defaults_leave_only_the_guards_in_the_record():
    needs_sandbox()
    with Scratch() as scratch:
        check(scratch.run("Say it.", *GREEDY, "--max-tokens", "4", "--context", "4096"), 4)
        assert settings_of(scratch) == {
            "max_thinking": 2048, "max_call": 2048, "max_repeats": 32}, settings_of(scratch)


def test_what_the_model_does_not_have_is_refused_by_name():
    with Scratch() as scratch:
        check(scratch.run("task", "--logit-bias", "4096=1"), 2,
              err=r"bias on token 4096: the vocabulary has ids 0 to 4095")
        check(scratch.run("task", "--speculate", "draft"), 3, err="has no draft stages")


def test_token_events_hold_the_likeliest():
    needs_sandbox()
    with Scratch() as scratch:
        done = check(
            scratch.run("Say it.", *GREEDY, "--max-tokens", "6", "--json", "--logprobs", "3"), 4)
        tokens = [event_of(line) for line in done.stdout.splitlines()]
        tokens = [event for event in tokens if event["event"] == "token"]
        assert len(tokens) == 6, done
        for token in tokens:
            top = token["top"]
            assert len(top) == 3 and top[0]["id"] == token["id"], token
            assert top[0]["logprob"] == token["logprob"], token
            assert top[0]["logprob"] >= top[1]["logprob"] >= top[2]["logprob"], token


def test_a_stop_string_ends_the_run_where_it_is_met():
    needs_sandbox()
    with Scratch() as scratch, Scratch() as other:
        check(scratch.run("Say it.", *GREEDY, "--max-tokens", "40"), 4)
        text = scratch.tree()["agents"][0]["turns"][0]["messages"][-1]["reasoning"]
        stop = text[11:16]
        done = check(other.run("Say it.", *GREEDY, "--max-tokens", "40", "--stop", stop), 0)
        assert b"the model wrote a stop string" in done.stdout, done
        tree = other.tree()
        turn = tree["agents"][0]["turns"][0]
        assert tree["stop_reason"] == turn["stop_reason"] == "stop", tree
        assert turn["stop_detail"] == stop, turn
        written = turn["messages"][-1]["reasoning"]
        assert text.startswith(written) and stop in written, (text, written)
        check(hearth("run", "--resume", "last", "--state", other.state), 0, err="nothing is left")


def test_thinking_without_end_is_told_and_then_stops_by_name():
    needs_sandbox()
    with Scratch() as scratch:
        done = check(scratch.run("Say it.", *GREEDY, "--max-thinking", "1"), 1)
        assert b"the model does not end its thinking (3 turns in a row were cut)" in done.stdout, done
        told = b"! The turn was ended: its thinking did not end (--max-thinking).\n"
        assert done.stdout.count(told) == done.stdout.count(b"\n! ") == 3, done
        tree = scratch.tree()
        turns = tree["agents"][0]["turns"]
        assert tree["stop_reason"] == "thinking" and len(turns) == 3, tree
        assert all(turn["stop_reason"] == "thinking" for turn in turns), turns
        assert all(turn["output_tokens"] <= 3 for turn in turns), turns
        for turn in turns[1:]:
            assert turn["messages"][0]["role"] == "user", turn
            assert "its thinking did not end" in turn["messages"][0]["text"], turn
        # It goes on where it stood, without sampling the cut turn again.
        check(hearth("run", "--resume", "last", "--state", scratch.state, "--max-turns", "1"), 4)
        tree = scratch.tree()
        assert len(tree["agents"][0]["turns"]) == 4, tree
        assert "its thinking did not end" in tree["agents"][0]["turns"][3]["messages"][0]["text"], tree


def test_constrained_calls_come_to_a_fix():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        check(scratch.run(task["prompt"], *GREEDY, "--constrain-tools", "on"), 0)
        assert settings_of(scratch)["constrain_tools"] is True
        calls = [call for turn in scratch.tree()["agents"][0]["turns"] for call in turn["calls"]]
        assert calls and all(isinstance(call["arguments"], dict) for call in calls), calls


def test_json_lines_follow_the_schema():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        done = check(scratch.run(task["prompt"], *GREEDY, "--json"), 0)
        assert done.stdout.endswith(b"\n")
        events = [event_of(line) for line in done.stdout.splitlines()]
        names = [event["event"] for event in events]
        assert names[-1] == "finished" and names[-2] == "changes", names[-3:]
        assert names.count("session") == 1 and "reasoning" in names
        assert names.count("tool_call") == names.count("tool_result") > 2
        usages = [event for event in events if event["event"] == "usage"]
        for usage in usages:
            assert usage["prompt"] == usage["reused"] + usage["evaluated"], usage
        finished = events[-1]
        assert finished["stop"] == "answer" and finished["exit_status"] == 0
        assert finished["sampled"] == sum(usage["sampled"] for usage in usages)
        assert finished["turns"] == len(usages)
        known = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "json-events.md").read_text(), re.M)
        assert set(names) <= set(known), set(names) - set(known)
        documented = (ROOT / "docs" / "json-events.md").read_text()
        [session] = [event for event in events if event["event"] == "session"]
        assert re.search(rf"version of this\s+page, {session['schema']}:", documented), session["schema"]
        for event in events:
            for key in event:
                assert f"`{key}`" in documented, key


def test_a_second_run_writes_the_same_text_and_the_record_holds_the_contract():
    needs_sandbox()
    with Scratch() as scratch:
        texts = []
        for _ in range(2):
            task = scratch.demo()
            done = check(scratch.run(task["prompt"], *GREEDY), 0)
            texts.append([line for line in done.stdout.splitlines() if not line.startswith(b"#")])
            assert re.search(rb"^# prompts: \d+ tokens reused, \d+ evaluated", done.stdout, re.M)
            shutil.rmtree(scratch.work)
            scratch.work.mkdir()
        assert texts[0] == texts[1]
        first = scratch.tree()["agents"][0]["turns"][0]["cache"]
        assert first["window_source"] in ("cold", "live", "snapshot", "rebuilt"), first
        assert first["reused_tokens"] == first["hit_position"], first
        assert first["rebuilt_tokens"] == first["hit_position"] - first["rebuilt_from"], first
        assert re.fullmatch("[0-9a-f]{64}", first["lineage"]), first
        assert first["block_lineage"] == first["lineage"], first
        assert first["decoder_lineage"] == "0" and "replays" not in first, first
        assert first["backend"].startswith("cpu") and first["numerics_version"], first
        shown = hearth("sessions", "show", "last", "--state", scratch.state).stdout.decode()
        assert re.search(r"^  cache: windows \w+", shown, re.M), shown
        assert re.search(r"^  lineage: root [0-9a-f]{16}, blocks the same, decoder exact; cpu", shown,
                         re.M), shown


def test_trouble_of_the_cache_directory_is_one_warning_and_never_fatal():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "1", "--cache", "off"), 4)
        cache = pathlib.Path(scratch.state, "cache")
        assert not cache.exists()
        cache.write_text("a file in its place")
        done = check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "1", "--json"), 4)
        warnings = [json.loads(line) for line in done.stdout.splitlines()
                    if json.loads(line)["event"] == "warning"]
        assert len(warnings) == 1, warnings
        assert warnings[0]["text"].startswith("no cache on disk: ") and "cache" in warnings[0]["text"]
        assert cache.read_text() == "a file in its place"
        doctor = hearth("doctor", "--state", scratch.state).stdout.decode()
        assert re.search("^weak  cache .* is no directory: runs keep no cache", doctor, re.M), doctor
        cache.unlink()
        check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "1"), 4)
        assert cache.is_dir() and cache.stat().st_mode & 0o777 == 0o700


def warnings_of(done):
    events = [event_of(line) for line in done.stdout.splitlines()]
    return [event["text"] for event in events if event["event"] == "warning"]


def test_a_budget_that_holds_no_block_is_one_warning_and_removes_nothing():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        options = [*GREEDY, "--max-turns", "1", "--json"]
        assert warnings_of(check(scratch.run(task["prompt"], *options), 4)) == []
        before = hearth("cache", "show", "--json", "--state", scratch.state).stdout
        blocks = re.search(rb'"blocks":(\d+)', before).group(0)
        small = warnings_of(check(scratch.run(task["prompt"], *options, "--cache", "1K"), 4))
        assert len(small) == 1 and small[0].startswith("no cache on disk: the budget of 1024 bytes")
        small = warnings_of(check(scratch.run(task["prompt"], *options, "--cache-writes", "1K"), 4))
        assert len(small) == 1 and small[0].startswith("nothing more is written to the cache on disk")
        assert blocks in hearth("cache", "show", "--json", "--state", scratch.state).stdout


def test_memory_line_sums_and_off_leaves_no_pool():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        for options, is_off in [([], False), (["--snapshots", "off", "--cache-memory", "off"], True)]:
            done = check(scratch.run(task["prompt"], *GREEDY, "--max-turns", "2", *options), 4)
            line = re.search("memory: .*", (done.stdout + done.stderr).decode()).group(0)
            total = float(re.search(r"beside them ([0-9.]+) MiB", line).group(1))
            names = ["KV", "snapshots", "prefix tree", "windows and tables",
                     "buffers of the cache's tiers", "host pool", "scratch"]
            parts = {name: float(re.search(name + r" ([0-9.]+) MiB", line).group(1)) for name in names}
            assert abs(sum(parts.values()) - total) < 0.05 * (len(names) + 1), line
            cached = float(re.search(r"([0-9.]+) MiB of it cache", line).group(1))
            assert (parts["snapshots"] == 0 and cached == 0) == is_off, line


def test_log_level_comes_from_the_environment():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        for level, wanted in [("info", rb"Z info run finished stop=tokens exit_status=4\n"),
                              ("loud", rb"warning main unknown_log_level HEARTH_LOG=loud\n")]:
            os.environ["HEARTH_LOG"] = level
            try:
                ran = scratch.run(task["prompt"], *GREEDY, "--max-tokens", "5")
            finally:
                del os.environ["HEARTH_LOG"]
            assert re.search(wanted, ran.stderr), ran.stderr


def test_an_edit_within_the_second_of_a_test_run_is_seen_by_python():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.work.mkdir(parents=True, exist_ok=True)
        code = ("printf 'x = 1\\n' >m.py; touch -d @1000000000 m.py; python3 -c 'import m; print(m.x)'; "
                "printf 'x = 2\\n' >m.py; touch -d @1000000000 m.py; python3 -c 'import m; print(m.x)'")
        done = check(hearth("sandbox", "run", "-C", str(scratch.work), "--", "sh", "-c", code), 0)
        assert done.stdout == b"1\n2\n", done.stdout


if __name__ == "__main__":
    sys.exit(main(globals()))
