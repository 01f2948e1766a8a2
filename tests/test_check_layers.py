#!/usr/bin/env python3
"""check_layers.py on small invented trees: each rule is broken once and must be reported."""
import subprocess
import sys
import tempfile
from pathlib import Path

CHECK = Path(__file__).resolve().parent / "check_layers.py"
GUARD = "#ifndef HEARTH_{0}_H\n#define HEARTH_{0}_H\n{1}\n#endif\n"

GOOD = {
    "base/a.h": GUARD.format("BASE_A", "int a(void);"),
    "base/a.c": '#include "a.h"\n\n#include <stdio.h>\n\nint a(void) {\n    return 0;\n}\n',
    "engine/chat.h": GUARD.format("ENGINE_CHAT", '#include "base/a.h"'),
    "tools/t.c": '#include "engine/chat.h"\n',
    "base/CMakeLists.txt": "add_library(base a.c)\n",
    "tools/CMakeLists.txt": "add_library(tools t.c)\n",
}

# file, content, what the report must say
BROKEN = [
    ("base/a.c", '#include "engine/chat.h"\n#include "a.h"\n', 'base/ must not include "engine/chat.h"'),
    ("tools/t.c", '#include "kernels/backend.h"\n#include "engine/chat.h"\n', "does not exist"),
    ("tools/t.c", '#include "engine/chat.h"\n#include "engine/model.h"\n', 'tools/ must not include "engine/model.h"'),
    ("base/a.c", '#include "base/a.h"\n', "is at home"),
    ("base/a.c", '#include "chat.h"\n#include "a.h"\n', "crossing a border"),
    ("base/a.c", '#include "a.h"\n#include <sqlite3.h>\n', "<sqlite3.h> belongs in"),
    ("base/a.c", '#include "a.h"\n#include <boost/any.hpp>\n', "neither a system header"),
    ("base/a.c", '#include "a.h"\nvoid b(void) {\n    exit(1);\n}\n', "exit(...) is banned"),
    ("base/a.c", '#include "a.h"\nvoid b(void) {\n    printf("x");\n}\n', "printf(...) is banned"),
    ("base/a.h", "#pragma once\nint a(void);\n", "wants the include guard HEARTH_BASE_A_H"),
    ("base/unused.c", "int b;\n", "base/unused.c: is in no CMake file"),
    ("base/unused.h", GUARD.format("BASE_UNUSED", ""), "base/unused.h: a public header that nothing"),
    ("engine/unused.h", GUARD.format("ENGINE_UNUSED", ""), "engine/unused.h: is included by nothing"),
    ("base/a.c", '#include "a.h" \n', "trailing blanks"),
    ("base/a.c", '#include "a.h"\n\tint b;\n', "a tab"),
    ("base/a.c", '#include "a.h"', "does not end with a newline"),
    ("base/a.c", '#include "a.h"\n// see ' + "/ro" + "ot/x\n", "path of somebody's machine"),
    ("base/a.c", '#include "a.h"\n' + "// x\n" * 801, "base/a.c: 802 lines"),
]
# A source named through a variable is built when the variable takes that value.
LOOP = {"base/CMakeLists.txt": "foreach(part a other)\n    add_library(x ${part}.c one_${part}.c)\nendforeach()\n",
        "base/one_other.c": "int c;\n"}
BROKEN_LOOP = ("base/one_third.c", "int d;\n", "base/one_third.c: is in no CMake file")
# Comments, strings and calls through a member are no banned calls.
FINE = '#include "a.h"\n/* exit(1) */\nconst char *s = "abort()";\nint b(void) {\n    return x.exit(1) + do_exit(2);\n}\n'


def run(files):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        done = subprocess.run([sys.executable, str(CHECK), str(root)], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


def main():
    failures = 0
    for files in (GOOD, {**GOOD, "base/a.c": FINE}, {**GOOD, **LOOP}):
        status, report = run(files)
        if status != 0:
            failures += 1
            print(f"a good tree is refused:\n{report}")
    for name, content, wanted in BROKEN + [BROKEN_LOOP]:
        files = {**GOOD, **(LOOP if (name, content, wanted) == BROKEN_LOOP else {}),
                 "engine/model.h": GUARD.format("ENGINE_MODEL", '#include "chat.h"'),
                 "engine/m.c": '#include "model.h"\n', "engine/CMakeLists.txt": "add_library(engine m.c)\n"}
        status, report = run({**files, name: content})
        notice = "public header" in wanted or "lines" in wanted
        if wanted not in report or (status == 0) != notice:
            failures += 1
            print(f"{name}: '{wanted}' is not reported (status {status}):\n{report}")
    print(f"{len(BROKEN) + 4} trees, {failures} failures")
    sys.exit(1 if failures else 0)


main()
