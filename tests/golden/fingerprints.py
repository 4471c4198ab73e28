#!/usr/bin/env python3
"""fingerprints.py BINARY: every job of fingerprints.txt must give the fingerprint that stands before it.

With UPDATE_EXPECT=1 the file is rewritten (and CHANGELOG.md wants a line under "Changed behaviour").
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys

TABLE = pathlib.Path(__file__).with_name("fingerprints.txt")
ROOT = TABLE.parent.parent.parent


def fingerprint(binary, arguments):
    run = subprocess.run([binary, *shlex.split(arguments), "--json", "-"], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return f"exit {run.returncode}: {run.stderr.strip()}"
    return json.loads(run.stdout)["simulation"]["fingerprint"]


def main():
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    lines, wrong, rows = [], 0, 0
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            lines.append(line)
            continue
        expected, arguments = line.split(" ", 1)
        found = fingerprint(binary, arguments)
        rows += 1
        if found != expected:
            wrong += 1
            print(f"stepsim {arguments}: found {found}, wanted {expected}")
        lines.append(f"{found} {arguments}")
    if os.environ.get("UPDATE_EXPECT") == "1":
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{rows} fingerprints written")
        return 0
    print(f"{rows} fingerprints, {wrong} wrong")
    return 1 if wrong or rows == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
