#!/usr/bin/env python3
"""scripts/draw_eval: a plot that is XML, with one line and one interval a setting and nothing outside of the canvas."""
import importlib.machinery
import importlib.util
import pathlib
import sys
import xml.etree.ElementTree as xml

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts/draw_eval"
NAMES = ["single", "retries", "best-of-8-alone", "best-of-8", "race-8", "staged", "auto"]


def load():
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("draw_eval", str(SCRIPT))
    spec = importlib.util.spec_from_loader("draw_eval", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def evaluation(limits, solved):
    """Every setting solved the same runs, so that lines and labels lie over each other."""
    settings = [{"setting": name, "runs": 300, "solved": len(solved) / 300, "low": 0.1, "high": 0.93,
                 "solved_at": solved} for name in NAMES]
    return {"backend": "cpu <avx2> & more", "effort": 50, "temperature": 0.8, "tasks": 100, "seeds": 3,
            "budgets": [{"budget": b, "limit": limit, "settings": settings} for b, limit in limits]}


def check(found, problems):
    drawn = xml.fromstring(load().draw(found))
    width, height = float(drawn.get("width")), float(drawn.get("height"))
    lines = [e for e in drawn if e.tag.endswith("polyline")]
    labels = [e.text for e in drawn if e.tag.endswith("text")]
    if len(lines) != sum(len(b["settings"]) for b in found["budgets"]):
        problems.append(f"{len(lines)} lines")
    for name in NAMES:
        if sum(text.startswith(name + " ") for text in labels) != len(found["budgets"]):
            problems.append(f"{name} has no label of its own")
    places = [(float(e.get("x")), float(e.get("y"))) for e in drawn if e.tag.endswith("text")]
    places += [tuple(map(float, p.split(","))) for line in lines for p in line.get("points").split()]
    problems += [f"{place} is outside" for place in places if not (0 <= place[0] <= width and 0 <= place[1] <= height)]
    if len(set(places)) < len(labels):
        problems.append("a label is on another one")


def main():
    problems = []
    check(evaluation([("time", 2000), ("tokens", 2500)], [100, 900, 1500, 2600]), problems)
    check(evaluation([("time", 2000)], list(range(1, 280))), problems)
    check(evaluation([("tokens", 2500)], []), problems)
    curve = load().curve({"solved_at": [30, 10, 99], "runs": 4}, 50)
    if curve != [(0.0, 0.0), (10, 0.0), (10, 0.25), (30, 0.25), (30, 0.5), (50, 0.5), (50, 0.75), (50, 0.75)]:
        problems.append(f"the curve is {curve}")
    print("\n".join(problems) or "ok")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
