"""Counts single tests in ctest's logs: summarize.py LastTest.log...

A cmocka program reports each of its tests; any other test program counts as one. Skipped tests are
named, with the reason when one was printed. The last line is 'N passed, N failed, N skipped'.
"""

import re
import sys


def count(path, totals, skipped):
    text = open(path, encoding="utf-8", errors="replace").read()
    for part in re.split(r"^-{58}$\n(?=\d+/\d+ Testing: )|^(?=\d+/\d+ Testing: )", text, flags=re.M):
        head = re.match(r"\d+/\d+ Testing: (\S+)", part)
        if not head:
            continue
        name = head.group(1)
        ran = len(re.findall(r"^\[ RUN      \]", part, flags=re.M))
        skips = sorted(set(re.findall(r"^\[  SKIPPED \] ([A-Za-z_]\w+)$", part, flags=re.M)))
        failed = len(set(re.findall(r"^\[  FAILED  \] ([A-Za-z_]\w+)$", part, flags=re.M)))
        reasons = re.findall(r"^SKIPPED (.*)$", part, flags=re.M)
        ok = "Test Passed." in part
        if ran:
            if not ok and failed == 0:
                failed = 1  # died outside a test
            totals["failed"] += failed
            totals["skipped"] += len(skips)
            totals["passed"] += max(ran - failed - len(skips), 0)
            skipped += [f"{name}: {skip}" for skip in skips]
        elif reasons and not re.search(r"Test Failed\.", part):
            totals["skipped"] += len(reasons)
        else:
            totals["passed" if ok else "failed"] += 1
        skipped += [f"{name}: {reason}" for reason in reasons if not ran]
    return totals


def main():
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    skipped = []
    for path in sys.argv[1:]:
        count(path, totals, skipped)
    for line in sorted(set(skipped)):
        print(f"skipped {line}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**totals))
    return 1 if totals["failed"] or not totals["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
