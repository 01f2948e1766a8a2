#!/usr/bin/env python3
"""Evaluation tasks with one, two and three dependent bugs, a function of a seed.

    make_tasks.py OUT [--seed N] [--levels 60,25,15]   writes OUT/NNN-... and proves each task
    make_tasks.py --check OUT [--training N]           proves what is in OUT again, from its files

README.md says what a task holds, what is proved of it, and how it is kept apart from training. Plain
Python; functions, bugs and test layouts are those of ../recipe.
"""
import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "recipe"))
import gen  # noqa: E402
import tmpl  # noqa: E402

# Wordings of the training that do not say how many bugs there are.
PROMPTS = [
    "Some tests fail in this repository. Please fix the code.",
    "Fix the failing tests.",
    "Make the tests pass. Do not change the tests.",
    "Something is wrong in the code, the tests are red. Fix it.",
    "The test suite is failing, can you fix it?",
    "Tests are failing. Fix the source, not the tests.",
    "Help me get the tests green again.",
]
COMMANDS = [" Run the tests with `{}`.", " Test command: {}", " Use `{}` to check.", " The tests run with `{}`."]
MASKING = "bare"  # of the layouts of tests the one that stops at the first failure
LAYOUTS = ["check", "funcs", "unittest", "bare"]
# What the result of one function may be the argument of; negative and huge ones are sorted out by running.
FITS = {"Li": ("Li", "Lp"), "i": ("i", "p"), "s": ("s", "S"), "S": ("S",)}
VISIBLE, HIDDEN = 3, 8  # tests of a broken function
CPU_SECONDS = 5  # processor time, so that what a task is rejected for does not hang on how busy the machine is
WAIT_SECONDS = 120
# Of a program and as a shell tells it; the hard limit, which is the same, kills.
ENDED_BY_LIMIT = {code for number in (signal.SIGXCPU, signal.SIGKILL) for code in (-number, 128 + number)}
DRAWS_MAX = 50  # for each task
HASH_SEEDS = ("1", "2")


def give_up():
    sys.exit(f"make_tasks: a test did not end in {WAIT_SECONDS} s")


class Rejected(Exception):
    """This draw does not make a task; the next one may."""


# ---- where bugs come from ------------------------------------------------------------------------


def is_unseen(function, mutation):
    """Held out as a pair, and not the same text as a bug of a kind that training does plant."""
    kind, start, end, new = mutation
    if not gen.held_out(function.key, kind):
        return False
    broken = function.lines[:start] + new + function.lines[end:]
    for other, a, b, lines in gen.mutate(function.lines):
        if not gen.held_out(function.key, other) and function.lines[:a] + lines + function.lines[b:] == broken:
            return False
    return True


def all_pairs():
    """Every pair that an instance with the usual names has."""
    pairs = []
    for template in tmpl.T + tmpl.C:
        function = gen.inst(FirstChoice(), template, template in tmpl.C)
        kinds = {m[0] for m in gen.mutate(function.lines) if is_unseen(function, m)}
        pairs += [(template, kind) for kind in sorted(kinds)]
    return pairs


class FirstChoice:
    """Draws without chance: the first name, no renaming."""

    def random(self):
        return 0.56

    def choice(self, items):
        return items[0]


def draw_bug(r, template, kind):
    """A function and its broken lines."""
    function = gen.inst(r, template, template in tmpl.C)
    mutations = [m for m in gen.mutate(function.lines) if m[0] == kind and is_unseen(function, m)]
    if not mutations:
        raise Rejected("no such bug in this instance")
    _, start, end, new = r.choice(mutations)
    function.kind = kind
    function.broken = function.lines[:start] + new + function.lines[end:]
    return function


# ---- repositories --------------------------------------------------------------------------------


def functions_of(r, bugs):
    """The broken functions in their order, and others beside them; each with its module."""
    functions, names, keys = list(bugs), {b.name for b in bugs}, {b.key for b in bugs}
    if len(names) != len(bugs) or len(keys) != len(bugs):
        raise Rejected("two of a name")
    for template in r.sample(tmpl.T, r.randint(1, 3)):
        other = gen.inst(r, template)
        if other.name not in names and other.key not in keys:
            names.add(other.name)
            functions.append(other)
    modules = {}
    for function in functions:
        if function.cat not in modules:
            modules[function.cat] = r.choice([m for m in gen.MODS[function.cat] if m not in modules.values()])
        function.module = modules[function.cat]
    return functions


def source(functions, module, fixed):
    """Text of a module; bugs whose names are not in `fixed` are in it."""
    parts = []
    for function in functions:
        if function.module == module:
            is_broken = hasattr(function, "broken") and function.name not in fixed
            parts.append("\n".join(function.broken if is_broken else function.lines))
    return "\n\n\n".join(parts) + "\n"


def parameters(function):
    return re.search(r"\((.*?)\)", function.lines[0]).group(1)


def is_fitting(inner, outer):
    """Whether one template can take what the other returns."""
    takes = outer.get("args", [])
    return len(takes) == 1 and takes[0] in FITS.get(inner.get("ret"), ())


def compose(r, bugs, functions):
    """A later bug is only seen through a function that needs the one before it, where the two fit."""
    used = {f.name for f in functions} | {f.module for f in functions}
    for inner, outer in zip(bugs, bugs[1:]):
        if not is_fitting(inner.t, outer.t):
            continue
        module = r.choice([m for m in ("report", "app", "pipeline", "summary") if m not in used])
        name = f"{outer.name}_of_{inner.name}"
        imports = "\n".join(f"from {f.module} import {f.name}" for f in (outer, inner))
        text = (f"{imports}\n\n\ndef {name}({parameters(inner)}):\n"
                f"    return {outer.name}({inner.name}({arguments_of(inner)}))\n")
        return {"name": name, "module": module, "text": text, "outer": outer, "inner": inner}
    return None


def arguments_of(function):
    return ", ".join(p.split("=")[0].strip() for p in parameters(function).split(","))


# ---- tests ---------------------------------------------------------------------------------------


def draw_tests(r, function, count, composed):
    """[(lines before, expression)], all different."""
    if composed and function is composed["outer"]:
        inner, made = composed["inner"], {}
        for _ in range(3 * count):
            values = ", ".join(repr(gen.arg(r, kind)) for kind in inner.t["args"])
            made[f"{composed['name']}({values})"] = None
        return [((), expression) for expression in list(made)[:count]]
    made = dict.fromkeys((tuple(before), expression) for before, expression in gen.tests_for(r, function, count))
    return list(made)


def evaluate(files, imports, tests):
    """Results as texts, None where it raises."""
    code = gen._EVAL.replace("IMPORTS", repr(imports)).replace("TESTS", repr([(list(p), e) for p, e in tests]))
    box = gen.Box(files, "/x", 0)
    try:
        began = time.monotonic()
        limit = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (2, 2))\n"
        out, status = gen._fork_python(box.dir, ["-c"], code=limit + code, timeout=WAIT_SECONDS)
        if time.monotonic() - began >= WAIT_SECONDS:
            give_up()
        if status != 0:
            raise Rejected("a test does not come to its end")
        return json.loads(out)
    except ValueError as error:
        raise Rejected("output beside the results") from error
    finally:
        box.close()


def known_tests(r, good, imports, function, count, composed):
    """Tests of one function with the right results: (label, lines before, expression, result)."""
    tests = draw_tests(r, function, count, composed)
    found = []
    for (before, expression), result in zip(tests, evaluate(good, imports, tests)):
        if result is not None and len(result) < 60:
            label = expression if len(expression) < 50 else expression[:47] + "..."
            found.append((label, list(before), expression, result))
    return found


def imports_for(modules, tests):
    """Only what the tests name, as a person writes it."""
    used = {}
    for module, names in modules.items():
        found = [n for n in names if any(re.search(rf"\b{n}\b", e + " ".join(p)) for _, p, e, _ in tests)]
        if found:
            used[module] = found
    return used


def hidden_text(modules, tests):
    imports = "".join(f"from {m} import {', '.join(n)}\n" for m, n in imports_for(modules, tests).items())
    lines = [imports, "", "passed = 0"]
    for _, before, expression, result in tests:
        lines += ["try:"] + [f"    {line}" for line in before]
        lines += [f"    passed += ({expression}) == {result}", "except Exception:", "    pass"]
    lines += [f'print(f"hidden: {{passed}} of {len(tests)} passed")',
              f"raise SystemExit(0 if passed == {len(tests)} else 1)"]
    return "\n".join(lines) + "\n"


def lay_out(r, phases, modules):
    """Files of the visible tests and the command: a phase is run when all before it pass."""
    if len(phases) == 1 or r.random() < 0.5:
        layout = MASKING if len(phases) > 1 else r.choice(LAYOUTS)
        name = r.choice(["tests.py", "test_all.py", "run_tests.py"])
        tests = [test for phase in phases for test in phase]
        return {name: gen.lay_tests(r, imports_for(modules, tests), tests, layout)}, f"python3 {name}"
    files, commands = {}, []
    for number, tests in enumerate(phases, 1):
        name = f"test_{number}.py"
        files[name] = gen.lay_tests(r, imports_for(modules, tests), tests, r.choice(LAYOUTS))
        commands.append(f"python3 {name}")
    files["run_tests.sh"] = "#!/bin/sh\n" + " && ".join(commands) + "\n"
    return files, "sh run_tests.sh"


# ---- a task --------------------------------------------------------------------------------------


def draw_task(r, pairs):
    bugs = [draw_bug(r, template, kind) for template, kind in pairs]
    functions = functions_of(r, bugs)
    composed = compose(r, bugs, functions)
    modules = collections.OrderedDict()
    for function in functions:
        modules.setdefault(function.module, []).append(function.name)
    fixed = {b.name for b in bugs}
    good = {f"{m}.py": source(functions, m, fixed) for m in modules}
    bad = {f"{m}.py": source(functions, m, ()) for m in modules}
    if composed:
        modules[composed["module"]] = [composed["name"]]
        good[f"{composed['module']}.py"] = bad[f"{composed['module']}.py"] = composed["text"]
    imports = "\n".join(f"from {m} import {', '.join(n)}" for m, n in modules.items())
    phases, hidden = [], []
    for function in bugs:
        tests = known_tests(r, good, imports, function, VISIBLE + HIDDEN, composed)
        phases.append(tests[:VISIBLE])
        hidden += tests[VISIBLE:]
        if composed and function is composed["outer"]:
            hidden += known_tests(r, good, imports, function, HIDDEN // 2, None)
    for function in functions[len(bugs):]:
        tests = known_tests(r, good, imports, function, 3, composed)
        phases[0][:0] = tests[:1]  # what is whole is seen to be whole
        hidden += tests[1:]
    tests, command = lay_out(r, phases, modules)
    prompt = r.choice(PROMPTS) + (r.choice(COMMANDS).format(command) if r.random() < 0.7 else "")
    return {
        "repo": {**bad, **tests},
        "hidden": {"hidden_tests.py": hidden_text(modules, hidden)},
        "solution": {p: t for p, t in good.items() if bad[p] != t},
        "task": {
            "level": len(bugs), "language": "py", "prompt": prompt, "test_command": command,
            "hidden_command": "python3 hidden_tests.py",
            "hidden_line": f"hidden: {len(hidden)} of {len(hidden)} passed",
            "is_composed": composed is not None,
            "bugs": [{"file": f"{b.module}.py", "function": b.name, "template": b.key, "kind": b.kind,
                      "broken": "\n".join(b.broken), "correct": "\n".join(b.lines)} for b in bugs],
        },
    }


# ---- proofs --------------------------------------------------------------------------------------


def run(files, command, hash_seed):
    """Exit status and output, without what differs from run to run."""
    with tempfile.TemporaryDirectory(prefix="hearth-harder-") as directory:
        for path, text in files.items():
            (pathlib.Path(directory) / path).write_text(text)
        environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"}
        limits = f"ulimit -t {CPU_SECONDS}; "
        process = subprocess.Popen(["/bin/sh", "-c", limits + command], cwd=directory, env=environment,
                                   start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        try:
            out, _ = process.communicate(timeout=WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            give_up()
        if process.returncode in ENDED_BY_LIMIT:
            return 124, ""
        text = out.decode("utf-8", "replace").replace(directory, "DIR")
        return process.returncode, re.sub(r"in \d+\.\d+s", "in TIME", text)


def with_fixed(made, fixed):
    """The repository with the bugs of these numbers repaired."""
    files = dict(made["repo"])
    for number in fixed:
        bug = made["task"]["bugs"][number]
        if files[bug["file"]].count(bug["broken"]) != 1:
            raise Rejected("a broken function is not there once")
        files[bug["file"]] = files[bug["file"]].replace(bug["broken"], bug["correct"])
    return files


def expect(condition, what):
    if not condition:
        raise Rejected(what)


def prove(made):
    """Raises Rejected unless everything that README.md says of a task holds, by running it."""
    task, count = made["task"], len(made["task"]["bugs"])
    expect(task["level"] == count and 1 <= count <= 3, "the level is not the number of bugs")
    for bug in task["bugs"]:
        expect(gen.held_out(bug["template"], bug["kind"]), "a bug that training plants")
    whole = with_fixed(made, range(count))
    expect({**made["repo"], **made["solution"]} == whole, "the solution is not what repairs the bugs")
    expect(not set(made["repo"]) & set(made["hidden"]), "a hidden test is in the repository")
    for hash_seed in HASH_SEEDS:
        prove_visible(made, whole, hash_seed)
        status, out = run({**whole, **made["hidden"]}, task["hidden_command"], hash_seed)
        expect(status == 0 and out.endswith(task["hidden_line"] + "\n"), "the solution fails hidden tests")
        for fixed in itertools.chain(*(itertools.combinations(range(count), n) for n in range(count))):
            status, _ = run({**with_fixed(made, fixed), **made["hidden"]}, task["hidden_command"], hash_seed)
            expect(status == 1, "a bug that the hidden tests do not see, or never end with")


def prove_visible(made, whole, hash_seed):
    task, count = made["task"], len(made["task"]["bugs"])
    expect(run(whole, task["test_command"], hash_seed)[0] == 0, "the solution fails visible tests")
    before = None
    for step in range(count):
        status, out = run(with_fixed(made, range(step)), task["test_command"], hash_seed)
        expect(status not in (0, 124), "a bug that the visible tests do not see")
        expect(out != before, "a repair that changes nothing")
        for later in itertools.chain(*(itertools.combinations(range(step + 1, count), n)
                                       for n in range(1, count - step))):
            other = run(with_fixed(made, [*range(step), *later]), task["test_command"], hash_seed)
            expect(other == (status, out), "a later bug shows before the one before it is fixed")
        before = out


# ---- folders -------------------------------------------------------------------------------------


def write(directory, made):
    for part in ("repo", "hidden", "solution"):
        for path, text in made[part].items():
            (directory / part).mkdir(parents=True, exist_ok=True)
            (directory / part / path).write_text(text)
    (directory / "task.json").write_text(json.dumps(made["task"], indent=1) + "\n")


def read(directory):
    parts = {part: {p.name: p.read_text() for p in sorted((directory / part).iterdir())}
             for part in ("repo", "hidden", "solution")}
    return {**parts, "task": json.loads((directory / "task.json").read_text())}


def choose(r, pairs, used, level):
    """Pairs take turns, so that tasks differ as long as there are enough of them; every other task has two
    that fit, one behind the other."""
    ranked = sorted(pairs, key=lambda p: (used[p[0]["key"], p[1]], r.random()))
    chosen = ranked[:level]
    r.shuffle(chosen)
    if level > 1 and r.random() < 0.5:
        ways = [(i + j, i, j) for i, inner in enumerate(ranked) for j, outer in enumerate(ranked)
                if inner[0] is not outer[0] and is_fitting(inner[0], outer[0])]
        _, i, j = min(ways)
        others = [p for p in ranked if p[0] not in (ranked[i][0], ranked[j][0])][:level - 2]
        chosen = [ranked[i], ranked[j]]
        chosen[r.choice([0, 2]):0] = others
    return chosen


def make(out, seed, levels):
    pairs, used, texts, number, tried = all_pairs(), collections.Counter(), set(), 0, 0
    for level, wanted in enumerate(levels, 1):
        for _ in range(wanted):
            while True:
                if tried >= DRAWS_MAX * sum(levels):
                    sys.exit(f"make_tasks: {number} tasks in {tried} draws: no more can be made of this seed")
                # A text as a seed: never one of the integers that training and ../tasks began with.
                r = random.Random(f"harder|{seed}|{tried}")
                tried += 1
                chosen = choose(r, pairs, used, level)
                try:
                    made = draw_task(r, chosen)
                    broken = tuple(sorted(b["broken"] for b in made["task"]["bugs"]))
                    expect(broken not in texts, "the same bugs as an earlier task")
                    prove(made)
                except (Rejected, ValueError, IndexError):
                    for template, kind in chosen:
                        used[template["key"], kind] += 0.25  # others first, when it cannot be done
                    continue
                break
            texts.add(broken)
            for template, kind in chosen:
                used[template["key"], kind] += 1
            number += 1
            names = "+".join(f"{b['template']}-{b['kind']}" for b in made["task"]["bugs"])
            made["task"] = {"id": f"{number:03d}-L{level}-{names}", "seed": seed, **made["task"]}
            write(out / made["task"]["id"], made)
            print(f"\r{number} of {sum(levels)} tasks, {tried} draws", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def broken_in_released():
    """Files with the bugs of ../tasks and ../tasks-demo."""
    files = set()
    for folder in ("tasks", "tasks-demo"):
        for path in (HERE.parent / folder).glob("*/task.json"):
            files.add((path.parent / "repo" / json.loads(path.read_text())["bug"]["file"]).read_text())
    return files


def planted_by_training(count):
    """Pairs and broken functions of so many episodes of each seed of the recipe."""
    pairs, texts = set(), set()

    def watched(original):
        def call(*arguments):
            task = original(*arguments)
            if task:
                lines, start, end, new = task.fnlines
                pairs.add((task.key, task.kind))
                texts.add("\n".join(lines[:start] + new + lines[end:]))
            return task
        return call

    for name in ("make_py", "make_sh", "make_c"):
        setattr(gen, name, watched(getattr(gen, name)))
    for seed in [*range(100, 116), *range(1000, 1014)]:
        for k in range(count):
            gen.try_episode(seed, k)
    return pairs, texts


def check(out, training):
    released = broken_in_released()
    pairs, texts = planted_by_training(training) if training else (set(), set())
    levels, problems = collections.Counter(), 0
    for directory in sorted(p.parent for p in out.glob("*/task.json")):
        try:
            made = read(directory)
            prove(made)
            for bug in made["task"]["bugs"]:
                expect((bug["template"], bug["kind"]) not in pairs, "a pair that training planted")
                expect(bug["broken"] not in texts, "a broken function that training planted")
                expect(made["repo"][bug["file"]] not in released, "a file of the released tasks")
        except (Rejected, OSError, KeyError, ValueError) as problem:
            problems += 1
            print(f"{directory.name}: {problem}")
        levels[made["task"]["level"]] += 1
    seen = f"; {len(texts)} broken functions and {len(pairs)} pairs of training seen" if training else ""
    print(f"{sum(levels.values())} tasks ({', '.join(f'{n} of level {v}' for v, n in sorted(levels.items()))}), "
          f"{problems} problems{seen}")
    return 1 if problems or not levels else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--levels", default="60,25,15", help="tasks of each level")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--training", type=int, default=0, metavar="N",
                        help="with --check: against N episodes of each training seed")
    options = parser.parse_args()
    if options.check:
        return check(options.out, options.training)
    levels = [int(n) for n in options.levels.split(",")]
    if len(levels) > 3 or min(levels) < 0:
        parser.error("--levels: one to three numbers")
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty")
    make(options.out, options.seed, levels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
