#!/usr/bin/env python3
"""Style that a machine can check: includes run one way, external headers stay in their files,
banned calls, header guards, dead files, blanks, paths of a developer's machine, size notices.

Usage: check_layers.py [--compile CC] [--cxx CXX] [ROOT]

With --compile every header is also compiled alone (and those of kernels/ as C++ with --cxx).
Exit status 1 when anything is wrong; notices do not count. The rules are the tables below.
"""
import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

FOLDERS = ["base", "kernels", "engine", "sandbox", "tools", "sessions", "runtime", "tests", "examples"]
LIBRARIES = ["base", "kernels", "engine", "sandbox", "tools", "sessions"]

# Headers that another folder may include ("public"), beside all of base/.
ENGINE_PUBLIC = ["engine/engine.h", "engine/sampling.h", "engine/tokenizer.h", "engine/chat.h", "engine/limits.h",
                 "engine/model_inspect.h", "engine/model_synth.h", "engine/model_bench.h", "engine/kv_files.h", "engine/constraint.h",
                 "engine/grammar_vocabulary.h"]
SANDBOX_PUBLIC = ["sandbox/sandbox.h", "sandbox/workspace.h", "sandbox/workspace_merge.h", "sandbox/worktree.h", "sandbox/beneath.h", "sandbox/command.h"]
TOOLS_PUBLIC = ["tools/tool.h", "tools/tool_schema.h", "tools/tool_mcp.h", "tools/tool_fetch.h", "tools/tool_agents.h"]
SESSIONS_PUBLIC = ["sessions/session.h", "sessions/session_swarm.h", "sessions/importer.h", "sessions/exporter.h", "sessions/replay.h"]
KERNELS_PUBLIC = ["kernels/backend.h", "kernels/tensor.h", "kernels/formats.h"]
PUBLIC = ["base/*"] + ENGINE_PUBLIC + SANDBOX_PUBLIC + TOOLS_PUBLIC + SESSIONS_PUBLIC + KERNELS_PUBLIC

# Who may include what from other folders. Lower never includes upper.
ALLOWED = {
    "base": [],
    "kernels": ["base/*"],
    "engine": ["base/*"] + KERNELS_PUBLIC,
    "sandbox": ["base/*"],
    "sessions": ["base/*", "engine/chat.h"],
    "tools": ["base/*", "engine/chat.h"] + SANDBOX_PUBLIC,
    "runtime": ["base/*"] + ENGINE_PUBLIC + SANDBOX_PUBLIC + TOOLS_PUBLIC + SESSIONS_PUBLIC,
    "tests": ["*"],
    "examples": PUBLIC,
}
FORBIDDEN = {"kernels": ["base/json.h"]}
# Exceptions of single files, each with its reason.
EXTRA = {
    "sandbox/inner_main.c": [],  # links nothing of ours
    # The roofline counts the bytes of the model's weights by storage class.
    "examples/bench_engine.c": PUBLIC + ["engine/model.h"],
    # The prefix tree alone, without a model.
    "examples/bench_prefix.c": PUBLIC + ["engine/kv_prefix.h"],
}

# External headers and the files that may touch them.
EXTERNAL = {
    "cjson/cJSON.h": ["base/json.c"],
    "pcre2.h": ["engine/tokenizer*.c"],
    "utf8proc.h": ["engine/tokenizer*.c", "engine/engram*.c"],
    "xxhash.h": ["engine/kv_disk*.c"],
    "seccomp.h": ["sandbox/filter.c"],
    "git2*": ["sandbox/workspace*", "sandbox/worktree*"],
    "sqlite3.h": ["sessions/session_*.c", "sessions/session_internal.h", "tests/test_sessions*.c", "tests/sessions_kill.c",
                  "tests/fuzz_sessions.c", "tests/sessions_support.c"],
    "zstd.h": ["sessions/blob.c"],
    "uv.h": ["runtime/*"],
    "microhttpd.h": ["runtime/http_server.c"],
    "curl/*": ["runtime/http_client.c"],
    "histedit.h": ["runtime/terminal*.c"],
    "editline/*": ["runtime/terminal*.c"],
    "md4c*": ["runtime/markdown*.c"],
    "cuda*": ["kernels/cuda/*", "tests/cuda_emulation/*"],
    "cublas*": ["kernels/cuda/*"],
    "cooperative_groups*": ["kernels/cuda/*"],
    "dlfcn.h": ["kernels/backend_module.c", "kernels/cuda/cuda_cublas.cu"],
    "immintrin.h": ["kernels/cpu/*"],
    "cmocka.h": ["tests/*"],
}
EXTERNAL |= {name: ["tests/cuda_emulation/*"] for name in (
    "deque", "functional", "map", "mutex", "tuple", "type_traits", "vector", "sanitizer/*", "ucontext.h")}
EXTERNAL["vector"] = EXTERNAL["vector"] + ["kernels/cuda/check/*.cu"]
SYSTEM = re.compile(
    r"^((sys|linux|asm|netinet|arpa|net)/[\w/.-]+\.h"
    r"|(alloca|assert|ctype|dirent|errno|fcntl|fenv|float|fnmatch|ftw|getopt|glob|grp|inttypes|langinfo"
    r"|limits|link|locale|malloc|math|netdb|poll|pthread|pty|pwd|regex|sched|semaphore|setjmp|signal"
    r"|spawn|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|strings"
    r"|syscall|termios|threads|time|uchar|unistd|wchar|wctype)\.h)$")

# Calls that a folder of libraries does not make (style.md 17, 36), with the files that may.
BANNED = {
    r"(?:exit|_exit|_Exit|quick_exit|abort)": ["base/result.c", "sandbox/*_main.c", "kernels/cuda/check*"],
    r"(?:printf|puts|putchar|perror)": ["sandbox/*_main.c", "kernels/cuda/check*"],
    r"(?:system|popen|wordexp)": [],
    r"(?:setenv|putenv|unsetenv|clearenv|chdir|fchdir|umask)": ["sandbox/*_main.c"],
    r"(?:rand|srand|random|drand48|strerror_l|gethostbyname|tmpnam|mktemp)": [],
    r"(?:fork|vfork)": ["sandbox/*"],
}

# Where a path of somebody's machine may stand: invented data, and the roots a sandbox shows.
PATH_EXEMPT = ["tests/data/*", "tests/corpus/*", "examples/mini/*", "sandbox/*", "tests/*sandbox*",
               "tests/check_layers.py"]
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:root|work|home/(?!agent\b)\w+)\b")
# Parts of lanes.h, compiled once per instruction set; CUDA needs its own headers, its emulation C++.
NOT_ALONE = ["kernels/cpu/lanes*.h", "kernels/cuda/*", "tests/cuda_emulation/*"]
# Found in place of the CUDA toolkit's.
INCLUDED_BY_NAME = ["tests/cuda_emulation/cuda_runtime*.h", "tests/cuda_emulation/cuda_emulation_device.h"]
LINES_NOTICE = 800
SOURCE_SUFFIXES = (".c", ".h", ".cc", ".cu", ".cuh")
TEXT_SUFFIXES = {".c", ".h", ".cc", ".cu", ".cuh", ".py", ".cmake", ".txt", ".md", ".json", ".sql", ".sh", ""}
DATA = ["tests/data/*", "tests/corpus/*", "examples/mini/*"]

problems, notices = [], []


def problem(path, line, text):
    problems.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def matches(path, patterns):
    return any(fnmatch(path, pattern) for pattern in patterns)


def list_files(root):
    """Tracked and new files; without git, all but build folders."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    names = []
    if (root / ".git").exists():  # git refuses a tree of another owner: then walk
        names = subprocess.run(command, capture_output=True).stdout.decode().split("\0")[:-1]
    if not names:
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if f not in {".git", "build", "__pycache__"}]
            names += [str((Path(folder) / f).relative_to(root)) for f in files]
    return sorted(name for name in names if (root / name).is_file())


def strip_comments_and_strings(text):
    """The code with comments and literals blanked, line numbers kept."""
    token = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def check_include(path, number, name, quoted, files):
    folder, here = path.split("/")[0], os.path.dirname(path)
    if not quoted:
        owners = [files_ for pattern, files_ in EXTERNAL.items() if fnmatch(name, pattern)]
        if owners and not any(matches(path, files_) for files_ in owners):
            problem(path, number, f"<{name}> belongs in {', '.join(owners[0])} only")
        elif not owners and not SYSTEM.match(name):
            problem(path, number, f"<{name}> is neither a system header nor in the table of this check")
        return
    if "/" not in name:
        at_home = any(f.startswith(f"{folder}/") and f.endswith(f"/{name}") for f in files)
        if not at_home and name not in GENERATED:
            problem(path, number, f'"{name}" is not in {folder}/; crossing a border names the folder')
        return
    if name not in files:
        problem(path, number, f'"{name}" does not exist')
        return
    target = name.split("/")[0]
    if target == folder:
        if os.path.dirname(name) == here:
            problem(path, number, f'"{name}" is at home: include "{os.path.basename(name)}"')
        return
    if matches(name, FORBIDDEN.get(folder, [])) or not matches(name, EXTRA.get(path, ALLOWED[folder])):
        problem(path, number, f'{folder}/ must not include "{name}"')


GENERATED = set()  # headers made by the build, named in a CMakeLists.txt as .h.in


def check_source(path, text, files):
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
        if found:
            check_include(path, number, found.group(1) or found.group(2), bool(found.group(1)), files)
    folder = path.split("/")[0]
    if folder in LIBRARIES:
        code = strip_comments_and_strings(text)
        for number, line in enumerate(code.split("\n"), 1):
            for call, exempt in BANNED.items():
                found = re.search(rf"(?<![\w.>]){call}\s*\(", line)
                if found and not matches(path, exempt):
                    problem(path, number, f"{found.group().strip()}...) is banned in a library folder")
    lines = text.count("\n")
    if lines > LINES_NOTICE and "generated" not in text[:600].lower():
        notices.append(f"{path}: {lines} lines, more than {LINES_NOTICE}")


def check_guard(path, text):
    if not path.endswith(".h"):
        return
    # The path, or folder and file name: HEARTH_KERNELS_CPU_TEAM_H for kernels/cpu/cpu_team.h.
    names = ["HEARTH_" + re.sub(r"[^A-Za-z0-9]", "_", p[:-2]).upper() + "_H"
             for p in (path, f"{path.split('/')[0]}/{os.path.basename(path)}")]
    code = strip_comments_and_strings(text)
    first = re.search(r"\S[^\n]*\n[^\n]*", code)
    if not first or first.group() not in [f"#ifndef {name}\n#define {name}" for name in names]:
        problem(path, 1, f"wants the include guard {names[0]} before anything else")


def check_text(path, raw):
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        problem(path, 0, "is not UTF-8")
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip() and not path.endswith(".md"):
            problem(path, number, "trailing blanks")
        if "\t" in line and path.endswith(SOURCE_SUFFIXES + (".py",)):
            problem(path, number, "a tab")
        found = MACHINE_PATH.search(line)
        if found and not matches(path, PATH_EXEMPT):
            problem(path, number, f"'{found.group()}' is a path of somebody's machine")
    if raw and not raw.endswith(b"\n"):
        problem(path, 0, "does not end with a newline")


def is_built(base, cmake_texts):
    """Named in a CMake file, whole or as ${part}.c with a value of `part` that stands in that file."""
    for text in cmake_texts:
        if re.search(rf"(?<![\w.]){re.escape(base)}(?!\w)", text):
            return True
        for pattern in re.findall(r"[\w.-]*\$\{\w+\}[\w.-]*\.cu?\b", text):
            parts = re.split(r"\$\{\w+\}", pattern, maxsplit=1)
            found = re.fullmatch(rf"{re.escape(parts[0])}(\w+){re.escape(parts[1])}", base)
            if found and re.search(rf"\b{re.escape(found.group(1))}\b", text):
                return True
    return False


def check_dead(files, texts):
    """Every source is built by some CMake file, every header is included somewhere."""
    cmake = [t for p, t in texts.items() if p.endswith(("CMakeLists.txt", ".cmake"))]
    included = set()
    for path, text in texts.items():
        for name in re.findall(r'#\s*include\s*"([^"]+)"', text):
            top = path.split("/")[0]
            included |= {name} if "/" in name else {
                f for f in files if f.startswith(f"{top}/") and f.endswith(f"/{name}")}
    for path in files:
        base = os.path.basename(path)
        if path.endswith((".c", ".cc", ".cu")) and not is_built(base, cmake):
            problem(path, 0, "is in no CMake file")
        if path.endswith((".h", ".cuh")) and path not in included and not matches(path, INCLUDED_BY_NAME):
            if matches(path, PUBLIC):
                notices.append(f"{path}: a public header that nothing includes")
            else:
                problem(path, 0, "is included by nothing")


def compile_alone(root, path, compiler, standard):
    language = "c++" if standard.startswith("c++") else "c"
    source = f'#include "{path}"\n'
    home = root / path.split("/")[0]  # "backend.h" in kernels/cpu/
    command = [compiler, f"-std={standard}", "-D_GNU_SOURCE", '-DHEARTH_VERSION="0"', f"-I{root}", f"-I{home}", "-Wall",
               "-Wextra", "-Werror", "-fsyntax-only", "-x", language, "-"]
    done = subprocess.run(command, input=source.encode(), capture_output=True)
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip().split("\n")
        error = next((line for line in message if "error" in line), message[0])
        return f"{path}: does not compile alone as {standard}: {error}"
    return None


def check_headers_alone(root, files, options):
    jobs = []
    for path in files:
        if path.endswith(".h") and not matches(path, DATA + NOT_ALONE):
            jobs.append((path, options.compile, "c17"))
            if options.cxx and path.startswith("kernels/") and path.count("/") == 1:
                jobs.append((path, options.cxx, "c++17"))
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda job: compile_alone(root, *job), jobs):
            if result:
                problems.append(result)
    return len(jobs)


def check_named_tests(texts):
    """docs/lessons.md names the test that covers each report: "test_file: name, name; test_file: name"."""
    path = "docs/lessons.md"
    for line in texts.get(path, "").splitlines():
        cell = line.rstrip("|").split("|")[-1] if line.startswith("|") else ""
        for program, names in re.findall(r"(test_\w+)(?:: | \()([^;]*)", cell):
            text = texts.get(f"tests/{program}.c") or texts.get(f"tests/{program}.py")
            if text is None:
                problems.append(f"{path}: there is no {program}")
            for name in re.findall(r"\b[a-z]+(?:_[a-z0-9]+){2,}\b", names):
                if text is not None and name not in text:
                    problems.append(f"{path}: {program} has no test {name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", metavar="CC")
    parser.add_argument("--cxx", metavar="CXX")
    parser.add_argument("root", nargs="?", default=str(Path(__file__).resolve().parent.parent))
    options = parser.parse_args()
    root = Path(options.root).resolve()
    files = list_files(root)
    known = set(files)
    GENERATED.update(os.path.basename(p)[:-3] for p in files if p.endswith(".h.in"))
    texts = {}
    for path in files:
        if Path(path).suffix not in TEXT_SUFFIXES or matches(path, DATA):
            continue
        raw = (root / path).read_bytes()
        if b"\0" in raw[:4096]:
            continue
        check_text(path, raw)
        texts[path] = raw.decode(errors="replace")
    sources = [p for p in texts if p.endswith(SOURCE_SUFFIXES) and p.split("/")[0] in FOLDERS]
    for path in sources:
        check_source(path, texts[path], known)
        check_guard(path, texts[path])
    check_dead(sources, texts)
    check_named_tests(texts)
    alone = check_headers_alone(root, sources, options) if options.compile else 0
    for notice in notices:
        print(f"notice: {notice}")
    for text in problems:
        print(text)
    print(f"{len(texts)} text files, {len(sources)} sources, {alone} headers compiled alone: "
          f"{len(problems)} problems, {len(notices)} notices")
    sys.exit(1 if problems else 0)


main()
