#!/usr/bin/env python3
"""The built program as a user calls it, help and input: test_cli.py HEARTH [NAME-PART]...

What is shown, what is refused and with which status. Only loopback, only temporary directories.
"""
import json
import os
import re
import resource
import shutil
import subprocess
import sys

from cli_support import (
    GREEDY, HEARTH, MINI, ROOT, Scratch, Skipped, check, damaged_model, hearth, is_slow_build, main,
    needs_sandbox)


COMMANDS = [
    "run", "swarm", "sessions list", "sessions show", "sessions fork", "sessions diff",
    "sessions rewind", "sessions undo", "sessions prune", "sessions delete", "cache show",
    "cache verify",
    "cache evict", "cache export", "cache import", "config accept", "config path", "config", "doctor", "model inspect", "model tokens",
    "model render", "model parse", "model logits", "model synth", "model bench", "tool list",
    "tool call", "sandbox run", "sandbox file",
]
GROUPS = ["", "sessions", "cache", "model", "tool", "sandbox"]


# ---- help, usage ---------------------------------------------------------------------------------


def test_help_and_version_work_at_every_level():
    version = hearth("--version").stdout
    assert re.fullmatch(rb"hearth \d+\.\d+\.\d+\n", version), version
    for path in COMMANDS + GROUPS:
        words = path.split()
        for option in ["--help", "-h"]:
            shown = check(hearth(*words, option), 0, out=r"^usage: hearth")
            assert path.encode() in shown.stdout
        for option in ["--version", "-V"]:
            assert check(hearth(*words, option), 0).stdout == version


def test_help_fits_80_columns():
    for path in COMMANDS + GROUPS:
        wide = [line for line in hearth(*path.split(), "--help").stdout.decode().splitlines() if len(line) > 80]
        assert not wide, (path, wide)


def test_the_nearest_name_is_said():
    check(hearth("sessions", "shwo"), 2, err="no command 'sessions shwo': did you mean 'sessions show'\\?")
    check(hearth("sesions"), 2, err="no command 'sesions': did you mean 'sessions'\\?")
    check(hearth("run", "--polcy", "ask", "x"), 2, err="option '--polcy': did you mean '--policy'\\?")
    check(hearth("run", "--maxtime=3", "x"), 2, err="did you mean '--max-time'\\?")
    for words in (["sessions", "qqqqqqqq"], ["qqqqqqqq"], ["run", "--qqqqqqqq"], ["run", "-q"]):
        assert b"did you mean" not in check(hearth(*words), 2).stderr, words


def test_a_task_needs_no_command():
    """Words in one argument; what is mistyped stays an error. Nothing runs: the directory is not there."""
    for task in ("fix the bug", "run the tests", "fix\nit", " fix"):
        check(hearth(task, "-C", "/none"), 2, err="workspace: /none: ")
        check(hearth(task, "--effrt", "3"), 2, err="did you mean '--effort'\\?")
    check(hearth("sessions list"), 2, err="no command 'sessions list'")
    check(hearth("fix it", "b"), 2, err="unexpected 'b'")
    for word in ("fix", "", " ", "--fix it"):
        check(hearth(word, "-C", "/none"), 2, err="usage: hearth COMMAND")


def test_help_names_every_command():
    shown = hearth("--help").stdout.decode()
    for path in COMMANDS:
        assert f"hearth {path} " in shown, path


def test_unknown_option_is_refused_with_the_usage_line():
    for path in COMMANDS + GROUPS:
        check(hearth(*path.split(), "--no-such-option"), 2, err="(?i)usage: hearth")


def test_missing_value_and_surplus_word_are_refused():
    check(hearth("run", "--effort"), 2, err="--effort wants a value")
    check(hearth("run", "-C"), 2, err="-C wants a value")
    check(hearth("sandbox", "run", "--no-such"), 2, err="unknown option '--no-such'")
    check(hearth("sandbox", "run", "-C"), 2, err="value missing after '-C'")
    check(hearth("run", "a", "b"), 2, err="unexpected 'b'")
    check(hearth("tool", "call", "shell"), 2, err="missing")
    check(hearth("sessions", "list", "x"), 2, err="unexpected 'x'")


def test_unknown_command_is_refused():
    check(hearth("juggle"), 2, err=r"there is no command 'juggle'\nusage: hearth COMMAND")
    check(hearth("model", "juggle"), 2, err=r"there is no command 'model juggle'")
    check(hearth(), 2, err="which command")
    check(hearth("model"), 2, err="hearth model tokens")


def test_wrong_option_values_are_refused():
    wrong = [
        ("--effort", ["0", "101", "-1", "soon", "5.5", ""]),
        ("--temperature", ["-1", "hot", "nan", "inf", ""]),
        ("--top-p", ["0", "1.01", "-0.5", "x"]),
        ("--seed", ["-1", "x", "1.5", "99999999999999999999999"]),
        ("--max-time", ["0", "-5s", "soon", "10x", "1e99h", ""]),
        ("--max-tokens", ["0", "-1", "x"]),
        ("--max-turns", ["0", "x"]),
        ("--max-turn-tokens", ["0", "x", "3000000000"]),
        ("--window", ["maybe", ""]),
        ("--threads", ["0", "x", "100000"]),
        ("--tools", ["fly", "shell,fly"]),
        ("--context", ["0", "x"]),
        ("--top-k", ["-1", "x", "1.5", "3000000000"]),
        ("--min-p", ["1", "-0.1", "x", "nan"]),
        ("--repetition-penalty", ["0", "-1", "101", "x"]),
        ("--presence-penalty", ["2.1", "-3", "x"]),
        ("--frequency-penalty", ["2.1", "-3", ""]),
        ("--logit-bias", ["5", "5=", "5=x", "=1", "-1=1", "5=101", "5=nan", "5=1,", "99999999999=1"]),
        ("--stop", ["", "x" * 1025, "x" * 10000]),
        ("--speculate", ["maybe", ""]),
        ("--draft-max", ["0", "17", "x"]),
        ("--constrain-tools", ["maybe", ""]),
        ("--max-thinking", ["0", "-1", "x"]),
        ("--max-call", ["0", "no"]),
        ("--max-repeats", ["1", "0", "x"]),
        ("--logprobs", ["-1", "21", "x", "3"]),  # 3 is fine with --json
    ]
    with Scratch() as scratch:
        for option, values in wrong:
            for value in values:
                done = check(scratch.run("task", option, value), 2, err=r"usage: hearth run")
                assert option.encode() in done.stderr, done
        for values, reason in [
                (["--speculate", "off", "--draft-max", "2"], "leaves nothing for --draft-max"),
                (["--stop", b"\xff"], "--stop: .*UTF-8"),
                (["--stop", "x"] * 65, "--stop: takes at most 64"),
                (["--stop", "x", "--stop", ""], "--stop: number 2 is empty"),
                (["--seed", "-1"], "--seed wants a whole number from 0 to 18446744073709551615"),
                (["--logit-bias", ",".join(f"{i}=1" for i in range(1025))], "at most 1024 tokens"),
                (["--seed", "1"] * 257, "more than 256 options")]:
            check(scratch.run("task", *values), 2, err=reason)
        assert not os.path.exists(scratch.state)


def options_of_help(path):
    shown = hearth(*path.split(), "--help").stdout.decode()
    return set(re.findall(r"^  (?:-\w, |    )--([a-z-]+)", shown, flags=re.M))


def test_man_page_and_help_name_the_same_options():
    page = (ROOT / "docs" / "hearth.1").read_text()
    common = {"help", "version"}
    for path in COMMANDS:
        section = re.search(rf"^\.Ss hearth {path}\b.*?(?=^\.S[sh] )", page, flags=re.M | re.S)
        assert section, f"the man page has no section on {path}"
        documented = set(re.findall(r"^\.It .*?Fl -([a-z-]+)", section.group(0), flags=re.M))
        shown = options_of_help(path)
        assert common <= shown, path
        assert documented == shown - common, (path, documented ^ (shown - common))
    for option in common:
        assert f"Fl -{option}" in page


def test_man_page_renders_without_warnings():
    if shutil.which("man") is None:
        raise Skipped("man is not installed")
    done = subprocess.run(
        ["man", "--warnings", "-l", str(ROOT / "docs" / "hearth.1")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, MANWIDTH="80"))
    check(done, 0, out="EXIT STATUS")
    assert done.stderr == b"", done.stderr


def test_every_test_that_the_lessons_name_is_there():
    rows = re.findall(r"^\| (\d+) \|.*\| (test_[^|]*) \|$", (ROOT / "docs" / "lessons.md").read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 31)), rows
    for number, cell in rows:
        for part in cell.split("; "):
            program, tests = re.fullmatch(r"(test_\w+): (.*)", part).groups()
            [source] = [path for path in (ROOT / "tests").glob(program + ".*") if path.suffix in (".c", ".py")]
            for test in re.sub(r" \([^)]*\)", "", tests).split(", "):
                definition = rf"^(def test_|static void ){test}\("
                assert re.search(definition, source.read_text(), re.M), (number, program, test)


# ---- run: input ----------------------------------------------------------------------------------


def test_run_refuses_what_is_no_workspace():
    with Scratch() as scratch:
        missing = str(scratch.path / "missing")
        check(hearth("run", "x", "-C", missing, "--state", scratch.state), 2, err="workspace:.*missing")
        (scratch.path / "file").write_text("x")
        check(hearth("run", "x", "-C", str(scratch.path / "file"), "--state", scratch.state), 2,
              err="is not a directory")


def test_run_refuses_system_and_home_directories():
    needs_sandbox()
    with Scratch() as scratch:
        elsewhere = str(scratch.path / "home")
        os.mkdir(elsewhere)
        for directory in ["/usr", "/etc", "/tmp"]:
            done = hearth("run", "x", "-C", directory, "--state", "/dev/shm/hearth-test-state")
            check(done, 3, err="^hearth: workspace '" + directory)
        shutil.rmtree("/dev/shm/hearth-test-state", ignore_errors=True)
        check(hearth("run", "x", "-C", "/", "--state", scratch.state), 3, err="system directory")
        done = hearth("run", "x", "-C", elsewhere, "--state", scratch.state,
                      environment={"HOME": elsewhere})
        check(done, 3, err="home directory")


def test_run_refuses_an_empty_state_name_and_too_many_threads():
    with Scratch() as scratch:
        where = ["-C", str(scratch.work)]
        check(hearth("run", "x", *where, "--state", ""), 5, err="state directory is empty")
        check(hearth("run", "x", *where, "--threads", "257"), 2, err="from 1 to 256, not '257'")


def test_sizes_of_the_cache_are_read_by_one_rule():
    with Scratch() as scratch:
        where = ["-C", str(scratch.path / "missing")]  # refused right after the options
        for option in ["cache", "cache-writes", "cache-memory", "snapshots"]:
            for good in ["1", "4096", "512M", "512m", "16G", "16GiB", "16GB", "1.5T", "10B"]:
                check(hearth("run", "x", *where, f"--{option}", good), 2, err="workspace:")
            for bad in ["", "0", "-1", "G", "iB", "16X", "16 G", "1e30", "nan", "16GG", "8iB",
                        "2000000T", "on"]:
                check(hearth("run", "x", *where, f"--{option}", bad), 2,
                      err=f"--{option} wants a size such as 512M")
        for option in ["cache", "cache-memory", "snapshots"]:
            check(hearth("run", "x", *where, f"--{option}", "off"), 2, err="workspace:")
        check(hearth("run", "x", *where, "--cache-writes", "off"), 2, err="--cache-writes wants")
        check(hearth("run", "x", *where, "--cache-hours", "0"), 2, err="from 1 to 87600")
        check(hearth("run", "x", *where, "--cache", "off", "--cache-hours", "3"), 2,
              err="leaves nothing for --cache-hours")


def test_a_fifo_in_the_place_of_a_model_file_is_refused_and_not_waited_for():
    with Scratch() as scratch:
        for name in ["config.json", "tokenizer.json", "chat.json", "agent.json",
                     "generation_config.json", "model.safetensors.index.json"]:
            model = scratch.path / name
            shutil.copytree(MINI / "model", model)
            (model / name).unlink()
            os.mkfifo(model / name)
            check(scratch.run("x", "--model", str(model)), 5, err="^hearth: .*no regular file")


def test_a_model_file_beyond_a_limit_is_bad_data_and_no_refusal_of_the_machine():
    with Scratch() as scratch:
        for name in ["config.json", "tokenizer.json", "chat.json", "agent.json",
                     "generation_config.json", "model.safetensors.index.json"]:
            model = scratch.path / name
            shutil.copytree(MINI / "model", model)
            text = (model / name).read_text()
            deep = "[" * 70 + "]" * 70
            (model / name).write_text(text[:text.rindex("}")].rstrip() + f', "x": {deep}}}')
            check(scratch.run("x", "--model", str(model)), 5, err="^hearth: .*deeper than")


def test_run_beside_small_limits_is_refused_with_numbers():
    needs_sandbox()
    with Scratch() as scratch:
        def limited(kind, value):
            return subprocess.run(
                [HEARTH, "run", "x", "-C", str(scratch.work), "--state", scratch.state],
                preexec_fn=lambda: resource.setrlimit(kind, (value, value)), timeout=120,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check(limited(resource.RLIMIT_NOFILE, 40), 3, err="40 open files are allowed here, 128")
        check(limited(resource.RLIMIT_FSIZE, 10240), 5, err="^hearth: ")
        if not is_slow_build():
            check(limited(resource.RLIMIT_AS, 40 << 20), 3, err="of 7 threads")


def test_run_says_that_its_output_cannot_be_written():
    needs_sandbox()
    with Scratch() as scratch, open("/dev/full", "wb") as full:
        done = subprocess.run(
            [HEARTH, "run", "x", "-C", str(scratch.work), "--state", scratch.state, *GREEDY],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=120)
        assert done.returncode == 130, done
        assert b"cannot write to standard output: No space left" in done.stderr, done.stderr
        scratch.check_database()


def test_input_without_end_is_refused_with_the_limit():
    with open("/dev/zero", "rb") as zeros:
        for command in [["run"], ["model", "render"], ["model", "tokens"]]:
            done = subprocess.run([HEARTH, *command], stdin=zeros, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=120)
            check(done, 5, err=r"standard input: larger than the \d+ bytes taken")


def test_a_pipe_is_fine_as_an_operand():
    reader, writer = os.pipe()
    os.write(writer, b"thought</think>said")
    os.close(writer)
    done = subprocess.run([HEARTH, "model", "parse", f"/dev/fd/{reader}"], pass_fds=[reader],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    os.close(reader)
    check(done, 0, out='"content":"said"')


def test_run_refuses_an_empty_task():
    with Scratch() as scratch:
        check(scratch.run(text=""), 2, err="the task is empty")
        check(scratch.run(" \n"), 2, err="the task is empty")


def test_run_refuses_a_task_that_is_no_text():
    with Scratch() as scratch:
        done = subprocess.run(
            [HEARTH, "run", "-C", str(scratch.work), "--state", scratch.state],
            input=b"\xff\xfe", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check(done, 5, err="not UTF-8")


def test_run_refuses_a_state_directory_inside_the_workspace():
    with Scratch() as scratch:
        inside = str(scratch.work / "state")
        check(hearth("run", "x", "-C", str(scratch.work), "--state", inside), 5, err="workspace")


def test_run_refuses_bad_models():
    shard = "model-00001-of-00002.safetensors"
    whole = (MINI / "model" / shard).read_bytes()
    cases = [
        ("config.json", None), ("config.json", b"{}"), ("config.json", b"\x00" * 100),
        ("config.json", b'{"architectures": ["Other"]}'),
        ("tokenizer.json", None), ("tokenizer.json", b"[]"), ("chat.json", b"{"),
        ("chat.json", None), ("generation_config.json", b"{"), ("agent.json", b'{"turns_max": -1}'),
        (shard, None), (shard, whole[:1000]), (shard, b"\xff" * 64), (shard, whole[:-1]),
    ]
    with Scratch() as scratch:
        for name, content in cases:
            model = damaged_model(scratch, name, content)
            done = scratch.run("x", "--model", model)
            check(done, 5, err="^hearth: ")
            assert done.stderr.count(b"\n") == 1, done.stderr
        check(scratch.run("x", "--model", str(scratch.path / "missing")), 5, err="missing")

def test_a_context_that_cannot_be_is_refused_by_name():
    with Scratch() as scratch:
        check(scratch.run("x", "--context", "2000000000"), 2,
              err=r"^hearth: --context: a context of 2000000000 tokens is not between 1 and the model's \d+\n")
        needs_sandbox()
        done = check(scratch.run("x", "--context", "1"), 2,
                     err=r"^hearth: --context 1 leaves the model no room: the prompt alone has \d+ tokens\n")
        needed = int(re.search(rb"alone has (\d+) tokens", done.stderr).group(1))
        check(scratch.run("x", "--context", str(needed)), 2, err=f"--context {needed} leaves")
        check(hearth("sessions", "list", "--state", scratch.state), 0, out="^no sessions\n$")
        done = scratch.run("x", *GREEDY, "--context", str(needed + 1))
        check(done, 1, out="the context is full")  # one token was written


def test_a_turn_is_cut_at_its_limit():
    needs_sandbox()
    with Scratch() as scratch:
        check(scratch.run("Say it.", *GREEDY, "--max-turn-tokens", "3"), 1,
              out=r"did not end its turn \(no end after 3 tokens: see --max-turn-tokens\)")
        assert scratch.tree()["agents"][0]["turns"][0]["output_tokens"] == 3


def test_run_refuses_what_does_not_fit_into_memory():
    available = int(re.search(r"MemAvailable: +(\d+) kB", open("/proc/meminfo").read()).group(1))
    if available > 200 << 20:
        raise Skipped("two thousand million tokens may fit into this machine's memory")
    with Scratch() as scratch:
        config = json.loads((MINI / "model" / "config.json").read_text())
        holder = config.get("text_config", config)
        holder["max_position_embeddings"] = 2_000_000_000
        model = damaged_model(scratch, "config.json", json.dumps(config).encode())
        check(scratch.run("x", "--model", model, "--context", "2000000000"), 3, out="^$",
              err=r"^hearth: .* need \d+ bytes .* \d+ are allowed: \d+ short\n$")
        check(hearth("sessions", "list", "--state", scratch.state), 0, out="^no sessions\n$")


if __name__ == "__main__":
    sys.exit(main(globals()))
