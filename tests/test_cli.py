#!/usr/bin/env python3
"""The built program as a user calls it: test_cli.py HEARTH [NAME-PART]...

Each test is a function; output follows cmocka's, so that tests/summarize.py counts them. The model
is the bundled one, greedy, so that what it does is known: given SLOW_TASK its first step is to run
tests.py. Only loopback, only temporary directories.
"""
import contextlib
import functools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEARTH = os.path.abspath(sys.argv[1])
MINI = ROOT / "examples" / "mini"
COMMANDS = [
    "run", "sessions list", "sessions show", "sessions fork", "sessions diff",
    "sessions rewind", "sessions undo", "sessions prune", "sessions delete", "cache show",
    "cache verify",
    "cache evict", "cache export", "cache import", "config accept", "config path", "config", "doctor", "model inspect", "model tokens",
    "model render", "model parse", "model logits", "model synth", "model bench", "tool list",
    "tool call", "sandbox run", "sandbox file",
]
GROUPS = ["", "sessions", "cache", "model", "tool", "sandbox"]
SLOW_TASK = "Fix the failing tests. Use `python3 tests.py` to check."
GREEDY = ["--temperature", "0", "--effort", "50"]


class Skipped(Exception):
    pass


class Scratch:
    """A temporary directory with a workspace and a place for state."""

    def __enter__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="hearth-cli-"))
        self.state = str(self.path / "state")
        self.work = self.path / "work"
        self.work.mkdir()
        return self

    def __exit__(self, *unused):
        shutil.rmtree(self.path, ignore_errors=True)

    def demo(self, name="012-trace-call"):
        shutil.copytree(MINI / "tasks-demo" / name / "repo", self.work, dirs_exist_ok=True)
        return json.loads((MINI / "tasks-demo" / name / "task.json").read_text())

    def slow(self, seconds):
        (self.work / "tests.py").write_text(
            "import time\nopen('started', 'w').close()\n"
            f"end = time.time() + {seconds}\n"
            "while time.time() < end:\n"
            "    open('beat', 'w').write(str(time.time()))\n    time.sleep(0.05)\n"
            "print('ok')\n")

    def check_command_is_gone(self):
        """The command of slow() no longer runs: its file stops changing."""
        deadline = time.monotonic() + 10
        last, since = None, time.monotonic()
        while time.monotonic() - since < 1:
            assert time.monotonic() < deadline, "the command still runs"
            beat = self.work / "beat"  # not there: killed before its first one
            now = beat.read_text() if beat.exists() else ""
            if now != last:
                last, since = now, time.monotonic()
            time.sleep(0.1)

    def run(self, *arguments, **options):
        return hearth("run", *arguments, "-C", str(self.work), "--state", self.state, **options)

    def start(self, *arguments):
        return subprocess.Popen(
            [HEARTH, "run", *arguments, "-C", str(self.work), "--state", self.state, *GREEDY],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for_tool(self, process):
        deadline = time.monotonic() + 180
        while not (self.work / "started").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the tool did not start"
            time.sleep(0.02)

    def tree(self, *arguments):
        shown = hearth("sessions", "show", "last", "--state", self.state, "--json", *arguments)
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    def check_database(self):
        with sqlite3.connect(f"file:{self.state}/sessions.db?mode=ro", uri=True) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def here(state):
    """The directory in which 'last' is the newest session of a state directory; None: there is none such."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{state}/sessions.db?mode=ro", uri=True)) as database:
            [place] = database.execute(
                "SELECT iif(worktree_of = '', workspace, worktree_of) FROM session"
                " ORDER BY created_ms DESC, number DESC LIMIT 1").fetchone()
    except (sqlite3.Error, TypeError):
        return None
    return place if os.path.isdir(place) else None


def hearth(*arguments, text="", environment=None, timeout=300):
    state = arguments[arguments.index("--state") + 1] if "--state" in arguments else None
    return subprocess.run(
        [HEARTH, *arguments], input=text.encode(), stdout=subprocess.PIPE,
        cwd=here(state) if state and os.path.isabs(state) else None,
        stderr=subprocess.PIPE, env=dict(os.environ, **(environment or {})), timeout=timeout)


def check(done, status, out=None, err=None):
    what = f"{done.args}: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == status, f"wanted status {status}: {what}"
    assert out is None or re.search(out, done.stdout.decode()), f"wanted {out!r}: {what}"
    assert err is None or re.search(err, done.stderr.decode()), f"wanted {err!r}: {what}"
    return done


def is_slow_build():
    content = pathlib.Path(HEARTH).read_bytes()
    return b"__asan_init" in content or b"__tsan_init" in content


@functools.lru_cache(maxsize=None)
def what_doctor_says():
    with Scratch() as scratch:  # the user's own state is no matter of the tests
        done = hearth("doctor", "--state", scratch.state)
    return "" if done.returncode == 0 else done.stdout.decode()


def needs_sandbox():
    if what_doctor_says():
        raise Skipped("this machine cannot confine commands: " + what_doctor_says())


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
    check(hearth("swim"), 2, err=r"there is no command 'swim'\nusage: hearth COMMAND")
    check(hearth("model", "swim"), 2, err=r"there is no command 'model swim'")
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


def damaged_model(scratch, name, content):
    model = scratch.path / "model"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(MINI / "model", model)
    if content is None:
        (model / name).unlink()
    else:
        (model / name).write_bytes(content)
    return str(model)


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


# ---- run: what it does ---------------------------------------------------------------------------


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
            events = [json.loads(line) for line in done.stdout.splitlines()]
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
        events = [json.loads(line) for line in done.stdout.splitlines()]
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
        tokens = [json.loads(line) for line in done.stdout.splitlines()]
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
        events = [json.loads(line) for line in done.stdout.splitlines()]
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
    events = [json.loads(line) for line in done.stdout.splitlines()]
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
        budget = "4s" if is_slow_build() else "0.7s"
        ran = scratch.run(words, *GREEDY, "--cache", "off", "--threads", "1", "--max-time", budget)
        check(ran, 4, out="time budget spent")
        turn = scratch.tree()["agents"][0]["turns"][0]
        assert turn["is_finished"] and turn["stop_reason"] in ("cancelled", "deadline"), turn
        cache = turn["cache"]
        read = cache["evaluated_tokens"] + cache["reused_tokens"]
        assert read == cache["prompt_tokens"] < turn["token_runs"][0]["count"], turn
        scratch.check_database()


def test_time_budget_ends_a_running_command():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.slow(300)
        budget = 40 if is_slow_build() else 8  # enough to come to the command
        started = time.monotonic()
        check(scratch.run(SLOW_TASK, *GREEDY, "--max-time", f"{budget}s"), 4,
              out="time budget spent")
        seconds = time.monotonic() - started
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


def test_second_interrupt_ends_at_once():
    needs_sandbox()
    with Scratch() as scratch:
        # A command that does not end on SIGTERM gives time for the second signal.
        (scratch.work / "tests.py").write_text(
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "open('started', 'w').close()\ntime.sleep(300)\n")
        process = scratch.start(SLOW_TASK)
        scratch.wait_for_tool(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        process.communicate(timeout=60)
        assert process.returncode == 130, process.returncode
        assert time.monotonic() - started < 1.5
        scratch.check_database()


def test_kill_loses_no_finished_step():
    needs_sandbox()
    with Scratch() as scratch:
        scratch.slow(300)
        (scratch.work / "note.txt").write_text("x")
        process = scratch.start(SLOW_TASK, "--json")
        scratch.wait_for_tool(process)
        process.kill()
        out, _ = process.communicate(timeout=60)
        events = [json.loads(line) for line in out.splitlines()]
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


def in_mount_namespace(script):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Skipped("needs root for a small file system of its own")
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                           stderr=subprocess.PIPE)
    if probe.returncode != 0:
        raise Skipped("cannot mount: " + probe.stderr.decode().strip())
    return subprocess.run(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=300)


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


# ---- sessions, doctor, tools, sandbox ------------------------------------------------------------


def test_sessions_without_a_record():
    with Scratch() as scratch:
        check(hearth("sessions", "list", "--state", scratch.state), 0, out="^no sessions\n$")
        assert check(hearth("sessions", "list", "--json", "--state", scratch.state), 0).stdout == b""
        check(hearth("sessions", "show", "--state", scratch.state), 5, err="no sessions")
        assert not os.path.exists(scratch.state)


def test_sessions_show_names_what_it_cannot_find():
    with Scratch() as scratch:
        scratch.demo()
        scratch.run("x", *GREEDY, "--max-tokens", "1")
        check(hearth("sessions", "show", "ffffffff", "--state", scratch.state), 5, err="ffffffff")
        check(hearth("sessions", "show", "0", "--state", scratch.state), 5, err="^hearth: ")


def test_damaged_database_is_refused_and_left_alone():
    with Scratch() as scratch:
        os.mkdir(scratch.state, 0o700)
        database = pathlib.Path(scratch.state) / "sessions.db"
        database.write_bytes(b"no database at all" * 1000)
        before = database.read_bytes()
        check(scratch.run("x"), 5, err="^hearth: ")
        check(hearth("sessions", "list", "--state", scratch.state), 5, err="^hearth: ")
        check(hearth("doctor", "--state", scratch.state), 3, out="bad   state")
        assert database.read_bytes() == before


def test_doctor_says_whether_a_run_would_work():
    with Scratch() as scratch:
        good = hearth("doctor", "--state", scratch.state, "--json")
        found = json.loads(good.stdout)
        assert good.returncode == (0 if found["would_work"] else 3)
        subjects = {finding["subject"] for finding in found["findings"]}
        assert subjects >= {"sandbox", "processor", "memory", "model", "state", "terminal", "cuda", "cache"}
        check(hearth("doctor", "--state", scratch.state, "--model", str(scratch.path)), 3,
              out="bad   model")


def test_doctor_accepts_a_database_of_an_older_version():
    with Scratch() as scratch:
        os.mkdir(scratch.state, 0o700)
        with sqlite3.connect(f"{scratch.state}/sessions.db") as database:
            database.executescript((ROOT / "tests/data/sessions/version-1.sql").read_text())
        database.close()
        done = hearth("doctor", "--state", scratch.state)
        assert b"of an older version, the next run brings it up" in done.stdout, done.stdout
        assert b"bad   state" not in done.stdout, done.stdout


def test_sessions_of_an_older_version_are_refused_with_the_remedy():
    needs_sandbox()
    with Scratch() as scratch:
        os.mkdir(scratch.state, 0o700)
        with sqlite3.connect(f"{scratch.state}/sessions.db") as database:
            database.executescript((ROOT / "tests/data/sessions/version-1.sql").read_text())
        database.close()
        before = pathlib.Path(scratch.state, "sessions.db").read_bytes()
        for words in ["list"], ["show", "last"]:
            check(hearth("sessions", *words, "--state", scratch.state), 5,
                  err="schema version 1 and needs .*; the next 'hearth run' .*brings it up")
        assert pathlib.Path(scratch.state, "sessions.db").read_bytes() == before
        scratch.demo()
        scratch.run("x", *GREEDY, "--max-turns", "1")
        listed = hearth("sessions", "list", "--state", scratch.state)
        assert listed.returncode == 0 and len(listed.stdout.splitlines()) >= 2, listed


def test_tool_call_goes_through_the_sandbox():
    needs_sandbox()
    with Scratch() as scratch:
        work = str(scratch.work)
        check(hearth("tool", "call", "shell", '{"command": "echo hi"}', "-C", work), 0,
              out=r"^hi\n\[exit 0\]\n$")
        check(hearth("tool", "call", "write", '{"path": "a", "content": "x"}', "-C", work), 0,
              out="ok: wrote a")
        check(hearth("tool", "call", "read", '{"path": "a"}', "-C", work), 0, out="^x\n$")
        check(hearth("tool", "call", "read", '{"path": "../b"}', "-C", work), 1, out="error")
        check(hearth("tool", "call", "fly", "{}", "-C", work), 1, out="fly")
        check(hearth("tool", "call", "shell", "{", "-C", work), 1, out="error")
        value = json.loads(hearth("tool", "call", "shell", '{"command": "exit 3"}', "-C", work,
                                  "--json").stdout)
        assert value["command_exit_status"] == 3, value


def test_tool_list_is_what_a_prompt_declares():
    declared = json.loads(hearth("tool", "list", "--json", "--tools", "shell,read,edit,write").stdout)
    trained = json.loads((MINI / "default-prompt.json").read_text())["tools"]
    assert declared == trained
    names = [tool["name"] for tool in json.loads(
        hearth("tool", "list", "--json", "--dialect", "claude", "--tools", "all").stdout)]
    assert "Bash" in names and "shell" not in names, names
    check(hearth("tool", "list", "--dialect", "latin"), 2, err="hearth, claude or codex")
    check(hearth("tool", "list", "--tools", "fly"), 2, err="there are shell")


def test_sandbox_passes_the_exit_status_on():
    needs_sandbox()
    with Scratch() as scratch:
        work = str(scratch.work)
        check(hearth("sandbox", "run", "-C", work, "--", "sh", "-c", "echo out; exit 7"), 7, out="out")
        check(hearth("sandbox", "run", "-C", work, "--max-time", "1", "--", "sleep", "60"), 124)
        check(hearth("sandbox", "file", "write", work, "f", text="text"), 0)
        check(hearth("sandbox", "file", "read", work, "f"), 0, out="^text$")
        check(hearth("sandbox", "file", "read", work, "/etc/passwd"), 1)


# ---- model ---------------------------------------------------------------------------------------


def test_tokens_go_there_and_back():
    text = "def f(x):\n\treturn x ** 2  # h\u00e9 \u4f60\u597d \U0001f600\n"
    ids = check(hearth("model", "tokens", text=text), 0).stdout.decode()
    back = check(hearth("model", "tokens", "--decode", text=ids), 0)
    assert back.stdout.decode() == text
    value = json.loads(hearth("model", "tokens", "--json", text).stdout)
    assert value == {"text": text, "ids": [int(word) for word in ids.split()]}
    assert hearth("model", "tokens", "<think>").stdout == b"6\n"
    assert len(hearth("model", "tokens", "--no-markers", "<think>").stdout.split()) > 1
    check(hearth("model", "tokens", "-d", "1 x"), 5, err="'x' at byte 2 is no token id")
    check(hearth("model", "tokens", "-d", "99999999"), 5, err="^hearth: ")


def test_render_gives_the_prompt_of_the_model():
    known = json.loads((MINI / "default-prompt.json").read_text())
    tools = [{"type": "function", "function": tool} for tool in known["tools"]]
    messages = [{"role": "system", "content": known["system"], "tools": tools},
                {"role": "user", "content": known["example_user"]}]
    for effort, name in [("50", "rendered_prompt_effort_50"), ("off", "rendered_prompt_chat_mode")]:
        done = check(hearth("model", "render", "--effort", effort, text=json.dumps(messages)), 0)
        assert done.stdout.decode() == known[name]
    bare = [{"role": "system", "content": known["system"]}, messages[1]]
    done = hearth("model", "render", "--effort", "50", "--json",
                  text=json.dumps({"messages": bare, "tools": tools}))
    value = json.loads(done.stdout)
    assert value["text"] == known["rendered_prompt_effort_50"]
    check(hearth("model", "render", text=json.dumps({"messages": messages[1:], "tools": tools})), 0,
          out="### Available Tool Schemas")
    encoded = hearth("model", "tokens", text=value["text"]).stdout.split()
    assert value["ids"] == [int(word) for word in encoded]
    check(hearth("model", "render", text="{}"), 5, err="messages")
    check(hearth("model", "render", "/no/such/file"), 5, err="/no/such/file")


def test_run_uses_that_prompt():
    needs_sandbox()
    with Scratch() as scratch:
        known = json.loads((MINI / "default-prompt.json").read_text())
        scratch.run(known["example_user"], *GREEDY, "--max-tokens", "1")
        runs = scratch.tree("--tokens")["agents"][0]["turns"][0]["token_runs"]
        ids = " ".join(str(i) for i in runs[0]["ids"])
        text = hearth("model", "tokens", "--decode", text=ids).stdout.decode()
        assert text == known["rendered_prompt_effort_50"]


def test_parse_says_what_was_wrong():
    good = ("why</think>text\n\n<\uff5cDSML\uff5c calls>\n<\uff5cDSML\uff5c invoke name=\"read\">\n"
            "<\uff5cDSML\uff5c parameter name=\"path\" string=\"true\">a</\uff5cDSML\uff5c parameter>\n"
            "</\uff5cDSML\uff5c invoke>\n</\uff5cDSML\uff5c calls><\uff5cend\u2581of\u2581sentence\uff5c>")
    value = json.loads(check(hearth("model", "parse", text=good), 0).stdout)
    assert value["ended"] and value["problems"] == [], value
    assert value["message"]["reasoning_content"] == "why"
    assert value["message"]["tool_calls"][0]["function"]["name"] == "read"
    ids = hearth("model", "tokens", text=good).stdout.decode()
    assert json.loads(hearth("model", "parse", "--ids", text=ids).stdout) == value
    torn = json.loads(hearth("model", "parse", text=good[:90]).stdout)
    assert torn["problems"], torn
    check(hearth("model", "parse", "--strict", text=good), 0, out="read")
    check(hearth("model", "parse", "--strict", text=good[:90]), 5, err="^hearth: ")


def test_logits_are_the_same_bits_by_any_chunk():
    ids = hearth("model", "tokens", text="def add(a, b):\n    return a - b\n" * 3).stdout.decode()
    count = len(ids.split())
    whole = check(hearth("model", "logits", "--binary", text=ids), 0).stdout
    assert len(whole) == count * 4096 * 4, len(whole)
    for chunk in ["1", "7"]:
        assert hearth("model", "logits", "--binary", "--chunk", chunk, text=ids).stdout == whole
    last = hearth("model", "logits", "--binary", "--last", text=ids).stdout
    assert last == whole[-4096 * 4:]
    rows = [json.loads(line) for line in
            hearth("model", "logits", "--json", "--stats", text=ids).stdout.splitlines()]
    assert [row["position"] for row in rows[:-1]] == list(range(count))
    assert len(rows[-1]["stats"]) == 10
    check(hearth("model", "logits", text=""), 5, err="no token ids")
    check(hearth("model", "logits", text="5000"), 5, err="^hearth: .*5000")
    check(hearth("model", "logits", "--isa", "abacus", text="1"), 2, err="abacus")


def wanted_counters(config, count, replay):
    """What section 3.13 of the specification says runs for a prompt of `count` tokens: per layer the
    rows, and of those that choose entries the number and the index rows (None: at most the pool)."""
    layers = config["num_hidden_layers"]
    encoder = config["kv_source_layer_ids"][-1]
    pool = config["candidate_topk_blocks"] * config["candidate_block_size"]
    wanted = []
    for layer in range(layers):
        rows = count
        if layer >= encoder:
            window = config["sliding_window"]
            rows = window if replay else 1 + (layers - 1 - layer) * (window - 1)
        scores = []
        if layer in config["index_source_layer_ids"]:
            ratio = config["compress_ratios"][layer]
            visible = [(p + 1) // ratio for p in range(count - rows, count)]
            scores = [n for n in visible if n > config["index_topk"]]
        is_full = layer in config["kv_source_layer_ids"]
        wanted.append((rows, len(scores), sum(scores) if is_full or not scores else None, pool))
    return wanted


def test_counters_of_a_long_prompt_are_exactly_what_it_needs():
    model = ROOT / "build" / "test-data" / "golden" / "tiny-a"
    config = json.loads((model / "config.json").read_text())["text_config"]
    count = 1000 if is_slow_build() else 4000
    ids = " ".join(str(3 + i * 7919 % 1200) for i in range(count))
    for window in ["exact", "replay"]:
        done = check(hearth("model", "logits", "--model", str(model), "--last", "--stats", "--json",
                            "--window", window, text=ids), 0)
        stats = json.loads(done.stdout.splitlines()[-1])["stats"]
        wanted = wanted_counters(config, count, window == "replay")
        assert [layer["rows_full"] for layer in stats] == [rows for rows, _, _, _ in wanted], stats
        assert [layer["topk_runs"] for layer in stats] == [runs for _, runs, _, _ in wanted], stats
        for layer, (_, runs, index_rows, pool) in zip(stats, wanted):
            if index_rows is None:
                assert 0 < layer["index_rows"] <= runs * pool, layer
                assert layer["index_rows_max"] <= pool, layer
            else:
                assert layer["index_rows"] == index_rows, layer
        if window == "exact" and count == 4000:
            assert [layer["rows_full"] for layer in stats] == 5 * [4000] + [61, 46, 31, 16, 1]


def test_inspect_reports_the_model():
    check(hearth("model", "inspect"), 0, out="10")
    value = json.loads(hearth("model", "inspect", "--json").stdout)
    assert isinstance(value, dict)
    check(hearth("model", "inspect", "/no/such/model"), 5, err="/no/such/model")


def test_synthetic_model_is_written_inspected_and_benched():
    with Scratch() as scratch:
        model = str(scratch.path / "model")
        config = str(MINI / "model" / "config.json")
        check(hearth("model", "synth", model), 2, err="--config")
        made = hearth("model", "synth", model, "--config", config, "--layers", "6", "--experts", "8",
                      "--positions", "2048", "--json")
        check(made, 0)
        report = json.loads(made.stdout)
        assert (report["layers"], report["experts"]) == (6, 8), report
        shown = json.loads(hearth("model", "inspect", model, "--json").stdout)
        assert isinstance(shown, dict)
        check(hearth("model", "synth", model, "--config", config), 5, err="not empty")
        done = hearth("model", "bench", "--model", model, "--backend", "cpu", "--threads", "1",
                      "--batch", "1,2", "--context", "200,1000000", "--prefill", "16", "--repeats",
                      "2", "--json", "-")
        check(done, 0)
        table = json.loads(done.stdout)
        steps = [row for row in table["rows"] if row["kind"] == "step"]
        assert [(row["phase"], row["batch"], row["rows"]) for row in steps] == [
            ("decode", 1, 1), ("decode", 2, 2), ("prefill", 1, 16)], steps
        assert len(table["left_out"]) == 3, table["left_out"]  # 1,000,000 tokens: positions 2,048
        for step in steps:
            parts = [row for row in table["rows"] if row["kind"] == "kernel" and
                     (row["phase"], row["batch"]) == (step["phase"], step["batch"])]
            assert step["bytes"] == sum(row["bytes"] for row in parts) > 0
            assert 0 < step["device_seconds"] <= step["seconds_max"]
            assert any(row["label"].startswith("experts fp4") for row in parts)
        assert table["launch_seconds"] == table["stamp_seconds"] == 0  # of a device alone
        assert all("positions, the model has 2048" in why for why in table["left_out"]), table["left_out"]
        check(hearth("model", "bench", "--model", model, "--context", "1000000"), 3, err="none of the cases fits")
        check(hearth("model", "bench", "--batch", "x"), 2, err="--batch")
        check(hearth("model", "bench", "--backend", "x"), 2, err="auto, cpu or cuda")
        check(hearth("model", "bench", "--batch", ",".join("1" * 33)), 2, err="--batch")
        check(hearth("model", "bench", "--batch", ",".join("1" * 31)), 2, err="66 cases")


# ---- terminal, installation ----------------------------------------------------------------------


STATUS_MARK = " | effort "  # of every status line, long or short


def tmux_screen(command, width, done, environment=""):
    """Runs a shell command in a tmux of its own; returns the last screen and all status lines."""
    if shutil.which("tmux") is None:
        raise Skipped("tmux is not installed")
    socket = f"hearth-test-{os.getpid()}"
    tmux = ["tmux", "-L", socket, "-f", "/dev/null"]
    started = subprocess.run(
        [*tmux, "new-session", "-d", "-x", str(width), "-y", "200", "sh", "-c",
         f"{environment} {command}; echo; echo status $?; sleep 600"], stderr=subprocess.PIPE)
    if started.returncode != 0:
        raise Skipped("tmux does not start: " + started.stderr.decode().strip())
    seen = set()
    try:
        deadline = time.monotonic() + 120
        while True:
            screen = subprocess.run([*tmux, "capture-pane", "-p", "-e"],
                                    stdout=subprocess.PIPE).stdout.decode()
            seen |= {line for line in screen.splitlines() if STATUS_MARK in line}
            if done in screen:
                return screen, seen
            assert time.monotonic() < deadline, screen
            time.sleep(0.02)
    finally:
        subprocess.run([*tmux, "kill-server"])


def test_live_view_fits_a_terminal_of_80_columns():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        prompt = task["prompt"].replace("`", "")
        command = (f"{HEARTH} run '{prompt}' -C {scratch.work} --state {scratch.state}"
                   f" --temperature 0 --effort 50 --max-time 5m")
        screen, status_lines = tmux_screen(command, 80, "status 0")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", screen)
        assert "done: the model ended with an answer" in plain, plain
        assert "\x1b[2m" in screen, "thinking is not dimmed"
        assert STATUS_MARK not in plain, "the status line is still there"
        assert status_lines, "no status line was seen"
        for line in status_lines:
            text = re.sub(r"\x1b\[[0-9;]*m", "", line)
            assert len(text) < 80 and "reused" in text, line
            assert re.search(r"\| \d:\d\d( left)? \|", text), line  # of --max-time
        # Nothing that was streamed is lost or doubled by the redrawing.
        joined = re.sub(r"\s+|~ ", "", plain)
        assert joined.count(re.sub(r"\s+", "", "Run the tests to see the failure.")) == 1, plain


def test_no_color_means_no_colour():
    needs_sandbox()
    with Scratch() as scratch:
        task = scratch.demo()
        prompt = task["prompt"].replace("`", "")
        command = (f"{HEARTH} run '{prompt}' -C {scratch.work} --state {scratch.state}"
                   f" --temperature 0 --effort 50")
        screen, _ = tmux_screen(command, 100, "status 0", "NO_COLOR=1")
        assert "\x1b[" not in screen, screen


def test_installed_tree_can_be_moved():
    build = pathlib.Path(HEARTH).parent.parent
    if not os.access(build, os.W_OK):
        raise Skipped("cmake --install writes a list into the build folder, which is not ours")
    with Scratch() as scratch:
        done = subprocess.run(["cmake", "--install", str(build), "--prefix", str(scratch.path / "a")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check(done, 0)
        os.rename(scratch.path / "a", scratch.path / "b")
        program = str(scratch.path / "b" / "bin" / "hearth")
        listed = subprocess.run([program, "doctor", "--state", scratch.state],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert f"{scratch.path}/b/share/hearth/mini" in listed.stdout.decode(), listed
        assert (scratch.path / "b" / "share" / "man" / "man1" / "hearth.1").is_file()
        if listed.returncode == 0:
            called = subprocess.run(
                [program, "tool", "call", "shell", '{"command": "echo moved"}', "-C",
                 str(scratch.work)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            check(called, 0, out="moved")


# ---- harness -------------------------------------------------------------------------------------


def run_tests(tests):
    failed = skipped = 0
    print(f"[==========] Running {len(tests)} test(s).")
    for name, test in tests:
        name = name[len("test_"):]
        print(f"[ RUN      ] {name}", flush=True)
        try:
            test()
            print(f"[       OK ] {name}")
        except Skipped as reason:
            skipped += 1
            print(f"SKIPPED {name}: {reason}")
            print(f"[  SKIPPED ] {name}")
        except Exception:  # pylint: disable=broad-except
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"[  FAILED  ] {name}")
    print(f"[==========] {len(tests)} test(s) run, {failed} failed, {skipped} skipped.", flush=True)
    return 1 if failed else 0


def main(names):
    """Runs the tests among a module's names, all or those that the command line names a part of."""
    parts = sys.argv[2:]
    return run_tests([(name, test) for name, test in names.items()
                      if name.startswith("test_") and callable(test)
                      and (not parts or any(part in name for part in parts))])


if __name__ == "__main__":
    sys.exit(main(globals()))
