#!/usr/bin/env python3
"""Writes tools/data/measured_steps: the published steps that the program names as evidence, with its own error on each.

    python3 tools/write_evidence.py build/release/stepsim [../shared/data/published]

Run it after whatever changes step times, build, and run tools/write_tables.py.
"""
import csv
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLES = {"mpt": "mpt_llmfoundry.csv", "vtrain": "vtrain_megatron_multi_node_a100.csv", "results": "results.csv"}


def rows_of(program, table):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "rows.csv"
        subprocess.run([program, "validate", "--published", str(table), "--evidence", str(out)], check=True, stdout=subprocess.DEVNULL)
        with open(out, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return reader.fieldnames, list(reader)


def write(name, head, rows):
    path = ROOT / "tools/data/measured_steps" / (name + ".csv")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, head, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path.relative_to(ROOT)}: {len(rows)} rows")


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT.parent / "shared/data/published"
    for name, table in TABLES.items():
        head, rows = rows_of(program, folder / table)
        if name != "results":
            for row in rows:
                row["id"] = f"{name} line {row['id']}"
            write(name, head, rows)
            continue
        write("results-dense", head, [row for row in rows if row["kind"] == "dense"])
        write("results-experts", head, [row for row in rows if row["kind"] == "experts"])


if __name__ == "__main__":
    main()
