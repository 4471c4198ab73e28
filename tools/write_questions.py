#!/usr/bin/env python3
"""write_questions.py BUILD [--check]: answers examples/offload/questions.csv with the program of a build folder.

Writes the table of examples/offload/README.md between its marks; --check compares instead and fails on a difference.
"""
import argparse
import csv
import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples/offload"
MARKS = re.compile(r"(<!-- questions -->\n).*?(<!-- end -->)", re.DOTALL)


def run(program, flags):
    result = subprocess.run([program, "run", *shlex.split(flags), "--json", "-"], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{flags}: {result.stderr.strip()[:300]}")
    return json.loads(result.stdout)


def gib(value):
    return f"{value / 2**30:.2f}"


def exposed(result):
    return sum(result["exposed_copy"].values())


def moved(result):
    return (result["offload"] or {"bytes_out": 0})["bytes_out"]


SHOWN = {
    "step": lambda a, b: f"step {1e3 * a['step_time_s']:.1f} -> {1e3 * b['step_time_s']:.1f} ms",
    "peak": lambda a, b: f"device peak {gib(a['memory']['peak_allocated_bytes'])} -> {gib(b['memory']['peak_allocated_bytes'])} GiB",
    "host": lambda a, b: f"host peak {gib(a['memory']['host_peak_bytes'])} -> {gib(b['memory']['host_peak_bytes'])} GiB",
    "exposed": lambda a, b: f"exposed copies {1e3 * exposed(a):.1f} -> {1e3 * exposed(b):.1f} ms",
    "host time": lambda a, b: f"waiting for the host {1e3 * a['time']['host_s']:.1f} -> {1e3 * b['time']['host_s']:.1f} ms",
    "contention": lambda a, b: f"contention {1e3 * a['time']['contention_s']:.2f} -> {1e3 * b['time']['contention_s']:.2f} ms",
    "moved": lambda a, b: f"moved each way {gib(moved(a))} -> {gib(moved(b))} GiB",
    "warning": lambda a, b: "warned: " + next(iter(w for w in b["warnings"] if "offload" in w), "nothing"),
}


def table(program):
    lines = ["| | question | command, and what to add | answer |", "| --- | --- | --- | --- |"]
    with open(FOLDER / "questions.csv", encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        for row in rows:
            base, changed = run(program, row["base"]), run(program, f"{row['base']} {row['changed']}")
            answer = "; ".join(SHOWN[each](base, changed) for each in row["shows"].split("|"))
            commands = f"`stepsim run {row['base']}` then `{row['changed']}`"
            lines.append(f"| {row['rank']} | {row['question']} | {commands} | {answer} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    readme = FOLDER / "README.md"
    text = readme.read_text(encoding="utf-8")
    fresh = MARKS.sub(lambda match: match.group(1) + table(str((arguments.build / "stepsim").resolve())) + match.group(2), text)
    if not arguments.check:
        readme.write_text(fresh, encoding="utf-8")
    elif fresh != text:
        for old, new in zip(text.splitlines(), fresh.splitlines()):
            if old != new:
                print(f"- {old}\n+ {new}")
        sys.exit("examples/offload/README.md differs: python3 tools/write_questions.py BUILD writes it")


if __name__ == "__main__":
    main()
