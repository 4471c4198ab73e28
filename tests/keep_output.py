#!/usr/bin/env python3
"""keep_output.py PROGRAM FILE: runs a test program, shows what it prints and keeps it in FILE. Exit code: the program's."""
import pathlib
import subprocess
import sys

program, kept = sys.argv[1], pathlib.Path(sys.argv[2])
kept.parent.mkdir(parents=True, exist_ok=True)
kept.unlink(missing_ok=True)
run = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False)
print(run.stdout, end="")
if run.returncode == 0:
    kept.write_text(run.stdout, encoding="utf-8")
sys.exit(run.returncode)
