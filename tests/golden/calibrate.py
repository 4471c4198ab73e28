#!/usr/bin/env python3
"""A user's path, from nothing: 60 measured products of a GPU that the catalog does not have -> a machine file -> a step on it. Wrong files
are refused with the line, and nothing is written. Usage: calibrate.py STEPSIM."""
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPSIM = str(pathlib.Path(sys.argv[1]).resolve())

# The GPU: 700 TFLOP/s dense bf16, 2,400 GB/s, 100 SMs. Its times are those of spec kernels.md 2.1 with the constants below and one kind of
# tile, 128 x 128, +-2 % by a fixed pattern: close to, yet not of, the model that is fitted, which chooses among 14 tiles and splits k.
PEAK, HBM, SMS = 700e12, 2400e9, 100
FIXED_S, COMPUTE, MEMORY = 3e-6, 0.75, 0.8
FACTS = ["--set", "peak.bf16=700 TFLOP/s", "--set", "hbm=2400 GB/s", "--set", "memory=96 GiB", "--set", "sms=100"]
HEAD = "op,dtype,m,n,k,gpu,latency_us"


def latency_us(m, n, k, index):
    tiles = math.ceil(m / 128) * math.ceil(n / 128)
    waves = max(1.0, tiles / SMS)
    compute_s = waves * 2 * 128 * 128 * k / (COMPUTE * PEAK / SMS)
    memory_s = 2 * (m * k + k * n + m * n) / (MEMORY * HBM)
    wobble = 1 + 0.02 * (index % 5 - 2) / 2
    larger, smaller = max(compute_s, memory_s), min(compute_s, memory_s)
    overlapped_s = larger * (1 + (smaller / larger) ** 2.5) ** 0.4
    return (FIXED_S + overlapped_s) * wobble * 1e6


def rows(count=60):
    shapes = [(m, n, k) for m in (256, 1024, 4096, 8192, 16384) for n in (1024, 4096, 12288) for k in (1024, 4096, 8192, 14336)]
    return [f"gemm,bf16,{m},{n},{k},X9,{latency_us(m, n, k, i):.3f}" for i, (m, n, k) in enumerate(shapes[:count])]


class Case:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.failures = []

    def run(self, *arguments):
        return subprocess.run([STEPSIM, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)

    def write(self, name, lines):
        (self.folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def expect(self, condition, what):
        if not condition:
            self.failures.append(what)

    def succeeds(self, what, *arguments):
        result = self.run(*arguments)
        self.expect(result.returncode == 0, f"{what}: exit {result.returncode}: {result.stderr.strip()}")
        return result

    def refused(self, what, lines, place, words, *flags):
        """Exit 2, one line that begins with the place and holds the words; no file is left."""
        self.write("wrong.csv", lines)
        result = self.run("calibrate", "wrong.csv", "--output", "never.textproto", *(flags or ("--base", "h100-sxm-80gb", *FACTS)))
        text = result.stderr
        good = result.returncode == 2 and text.startswith(place) and all(word in text for word in words) and text.count("\n") == 1
        self.expect(good, f"{what}: exit {result.returncode}: {text.strip()!r}, wanted {place!r} and {words}")
        self.expect(result.stdout == "", f"{what}: something on stdout")
        self.expect(not (self.folder / "never.textproto").exists(), f"{what}: a file was left")


def users_path(case):
    case.write("x9.csv", [HEAD, *rows()])
    result = case.succeeds("calibrate", "calibrate", "x9.csv", "--base", "h100-sxm-80gb", *FACTS, "--output", "x9.textproto", "--json",
                           "x9.json")
    case.expect("held back" in result.stdout and "fitted" in result.stdout, "the table has no fitted and held-back rows")
    case.expect(result.stderr == "", f"a pipe got a progress bar: {result.stderr!r}")
    report = json.loads((case.folder / "x9.json").read_text(encoding="utf-8"))
    errors = {group["shapes"]: group for group in report["classes"][0]["errors"]}["all shapes"]
    case.expect(errors["fitted"]["rows"] + errors["held_out"]["rows"] == 60, "60 rows are not all fitted or held back")
    case.expect(errors["held_out"]["rows"] >= 20, "fewer than 20 rows are held back")
    # The pattern alone is 1.2 % off in the mean; what the model cannot express adds to it.
    case.expect(errors["held_out"]["mean_abs_error"] < 0.06, f"held-back rows are {errors['held_out']['mean_abs_error']:.3f} off")
    text = (case.folder / "x9.textproto").read_text(encoding="utf-8")
    for line in ['base: "h100-sxm-80gb"', 'bf16: "700 TFLOP/s"', "sms: 100", "fit {", "held_out_error:"]:
        case.expect(line in text, f"the machine file lacks {line}")
    job = ["run", "--model", "llama3-8b", "--layers", "4", "--hardware", "x9.textproto", "--sequence", "4096", "--json", "step.json"]
    step = case.succeeds("run", *job)
    case.expect("x9" in step.stdout, "the step does not name the machine")
    time_s = json.loads((case.folder / "step.json").read_text(encoding="utf-8"))["step_time_s"]
    # 4 layers of Llama-3 8B at 4096 tokens: 6 * 4 * 218e6 * 4096 FLOPs of layers and 6 * 525e6 * 4096 of the head, 3.4e13 in all with
    # attention; at 0.75 of 700 TFLOP/s 65 ms; the optimizer, norms and activations take less than as much again.
    case.expect(0.06 < time_s < 0.14, f"a step of {time_s} s")
    again = case.run("calibrate", "x9.csv", "--base", "h100-sxm-80gb", *FACTS)
    case.expect(again.stdout == text, "a second run writes another file")


def few_rows(case):
    case.write("few.csv", [HEAD, *rows(16)])
    result = case.succeeds("few rows", "calibrate", "few.csv", "--base", "h100-sxm-80gb", *FACTS, "--output", "few.textproto")
    text = (case.folder / "few.textproto").read_text(encoding="utf-8")
    case.expect("few rows" in result.stdout and "roofline" in result.stdout, f"few rows: not said: {result.stdout}")
    case.expect("few rows" in text and "gemm_tile" not in text, "few rows: the file says nothing of it, or has tiles")
    case.succeeds("run of few rows", "run", "--model", "llama3-8b", "--layers", "1", "--hardware", "few.textproto", "--sequence", "1024")


def wrong_files(case):
    good = rows()
    case.refused("unit in the head", ["op,dtype,m,n,k,gpu,latency_ms", *good], "wrong.csv:1:20: found column \"latency_ms\"",
                 ["wanted latency_us, microseconds"])
    case.refused("no unit in the head", ["op,dtype,m,n,k,gpu,latency", *good], "wrong.csv:1:20: found column \"latency\"",
                 ["wanted latency_us"])
    case.refused("a head of no layout", ["a,b,c", "1,2,3"], "wrong.csv:1:1: found columns a,b,c", ["wanted those of a layout"])
    case.refused("a column lacks", ["op,m,n,k,gpu,latency_us", "gemm,1,2,3,X9,4"], "wrong.csv:1:1: found no column dtype", ["wanted dtype"])
    case.refused("negative", [HEAD, *good[:3], "gemm,bf16,8,8,8,X9,-3.2"], "wrong.csv:5:20: found latency_us \"-3.2\"",
                 ["wanted a number above zero"])
    case.refused("zero", [HEAD, *good[:3], "gemm,bf16,8,8,8,X9,0"], "wrong.csv:5:20: found latency_us \"0\"", ["above zero"])
    case.refused("not a number", [HEAD, *good[:3], "gemm,bf16,8,8,8,X9,nan"], "wrong.csv:5:20: found latency_us \"nan\"", ["above zero"])
    case.refused("a unit in a cell", [HEAD, *good[:3], "gemm,bf16,8,8,8,X9,3.2ms"], "wrong.csv:5:20: found latency_us \"3.2ms\"",
                 ["above zero"])
    shape = good[2].rsplit(",", 1)[0]
    case.refused("a shape twice", [HEAD, *good, shape + ",9.9"], "wrong.csv:62:1: found the shape of line 4 again with another latency",
                 ["wanted each shape once"])
    case.refused("a line twice", [HEAD, *good, good[2]], "wrong.csv:62:1: found the shape of line 4 again with the same latency",
                 ["wanted each shape once"])
    case.refused("dtype", [HEAD, *good[:3], "gemm,bf61,8,8,8,X9,3"], "wrong.csv:5:6: found dtype \"bf61\"", ["wanted bf16"])
    case.refused("op", [HEAD, *good[:3], "conv,bf16,8,8,8,X9,3"], "wrong.csv:5:1: found op \"conv\"", ["wanted gemm"])
    case.refused("cells lack", [HEAD, *good[:3], "gemm,bf16,8,8"], "wrong.csv:5:1: found 4 cells", ["wanted 7"])
    milliseconds = [f"{row.rsplit(',', 1)[0]},{float(row.rsplit(',', 1)[1]) / 1000:.6f}" for row in good]
    case.refused("milliseconds under latency_us", [HEAD, *milliseconds], "wrong.csv:", ["faster than peak.bf16", "wanted microseconds"])
    nanoseconds = [f"{row.rsplit(',', 1)[0]},{float(row.rsplit(',', 1)[1]) * 1000:.6f}" for row in good]
    case.refused("nanoseconds under latency_us", [HEAD, *nanoseconds], "wrong.csv:", ["% of peak.bf16", "wanted microseconds"])
    case.refused("too few", [HEAD, *good[:5]], "wrong.csv: found 5 rows of matrix products", ["wanted at least 4 that are not"])
    case.refused("no rows", [HEAD], "wrong.csv:1:1: found a head alone", ["wanted rows"])
    case.refused("two GPUs", [HEAD, *good, "gemm,bf16,8,8,8,X10,3"], "--gpu: found none", ["X9, X10"])
    case.refused("another GPU", [HEAD, *good], "--gpu: found \"Y1\"", ["wanted one of X9"], "--gpu", "Y1", "--base", "b200")
    case.refused("no base", [HEAD, *good], "--base: found none", ["\"X9\" is not in the catalog"], *FACTS)
    case.refused("no facts", [HEAD, *good], "--set: found no peak.bf16, hbm, memory, sms of X9", ["wanted"], "--base", "h100-sxm-80gb")
    case.refused("a fact of a wrong unit", [HEAD, *good], "--set hbm: found", ["GB/s"], "--base", "h100-sxm-80gb", *FACTS, "--set", "hbm=3 GiB")
    case.refused("a fitted fact", [HEAD, *good], "--set gemm_tile.waves: found a constant that the rows are fitted for", ["wanted a fact"],
                 "--base", "h100-sxm-80gb", *FACTS, "--set", "gemm_tile.waves=1")


NCCL = """# nThread 1 nGpus 8 minBytes 1024 maxBytes 536870912 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
{devices}#
# all_reduce_perf
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{rows}# Out of bounds values : 0 OK
# Avg bus bandwidth    : 200
"""


def nccl_text(seconds):
    """`seconds` of a message of so many bytes over 8 ranks."""
    devices = "".join(f"#  Rank  {i} Group  0 Pid  30563 on  node device  {i} [0x{i}7] NVIDIA H100 80GB HBM3\n" for i in range(8))
    lines = ""
    for power in range(10, 30):
        time_us = seconds(2**power) * 1e6
        lines += f"{2**power:12d} {2**power // 4:12d}     float     sum      -1 {time_us:8.2f}    1.00    1.75      0 {time_us * 1.01:8.2f}    1.00    1.75      0\n"
    return NCCL.format(devices=devices, rows=lines)


def nccl_tests(case):
    # 20 us and 0.8 of 450 GB/s: 7/4 of the message over 360 GB/s
    (case.folder / "reduce.txt").write_text(nccl_text(lambda size: 20e-6 + 1.75 * size / 360e9), encoding="utf-8")
    case.succeeds("nccl-tests", "calibrate", "reduce.txt", "--base", "h100-sxm-80gb", "--gpu", "h100-sxm-80gb", "--output",
                  "node.textproto", "--json", "node.json")
    report = json.loads((case.folder / "node.json").read_text(encoding="utf-8"))
    case.expect(report["files"][0]["rows"] == 40, "20 sizes, out of place and in place, are not 40 rows")
    errors = report["classes"][0]["errors"][0]
    case.expect(errors["held_out"]["mean_abs_error"] < 0.02, f"a straight line is {errors['held_out']['mean_abs_error']:.3f} off")
    text = (case.folder / "reduce.txt").read_text(encoding="utf-8")
    (case.folder / "broken.txt").write_text(text.replace("(us)", "(ms)"), encoding="utf-8")
    result = case.run("calibrate", "broken.txt", "--gpu", "h100")
    case.expect(result.returncode == 2 and result.stderr.startswith("broken.txt:16:") and "wanted (us)" in result.stderr,
                f"milliseconds of nccl-tests: {result.stderr!r}")


def recipe(case):
    """A catalog of one machine: a refit differs, is written, and then no more."""
    (case.folder / "catalog/machines").mkdir(parents=True)
    machine = case.folder / "catalog/machines/l4.textproto"
    original = (ROOT / "hardware/data/machines/l4.textproto").read_text(encoding="utf-8")
    machine.write_text(original, encoding="utf-8")
    (case.folder / "data").mkdir()
    lines = ["op,dtype,rows,cols,gpu,latency_us"]
    for power in range(10, 24):  # 15 us and 3 tensors of 4 bytes at 0.5 of the L4's 300 GB/s
        lines.append(f"add,fp32,{2**power},64,lab-l4,{15 + 3 * 4 * 64 * 2**power / 150e3:.4f}")
    case.write("data/vec.csv", lines)
    case.write("catalog/calibration.textproto", ['machine {', '  name: "l4"', '  fit {', '    op_class: "memory"', '    part: "fused"',
                                                 '    rows { file: "vec.csv" gpu: "lab-l4" }', '    conditions: "made up"', '  }', '}'])
    arguments = ["calibrate", "--recipe", "catalog/calibration.textproto", "--data", "data"]
    before = case.run(*arguments)
    case.expect(before.returncode == 3 and "differ" in before.stdout, f"recipe: exit {before.returncode} on another catalog: {before.stderr}")
    case.expect(machine.read_text(encoding="utf-8") == original, "recipe: a comparison changed the file")
    case.succeeds("recipe --write", *arguments, "--write")
    text = machine.read_text(encoding="utf-8")
    case.expect("  fused: 0.5  # calibrate, vec.csv, elementwise" in text, f"recipe: the file lacks the refitted line: {text}")
    case.expect('conditions: "made up"' in text and "held_out_error" in text, "recipe: the file lacks its record")
    without_records = re.sub(r"^fit \{\n(  .*\n)*\}\n", "", original, flags=re.MULTILINE)
    kept = [line for line in without_records.splitlines() if "fused" not in line]
    case.expect("sms: 58" in without_records, "recipe: the original has no SMs")
    case.expect(all(line in text for line in kept), "recipe: other lines were lost")
    case.succeeds("recipe after --write", *arguments)
    case.write("catalog/calibration.textproto", ['machine {', '  name: "l4"', '  fit { op_class: "memory" rows { file: "none.csv" } }', '}'])
    result = case.run(*arguments)
    case.expect(result.returncode == 2 and result.stderr.startswith("data/none.csv: found no such file"), f"recipe: {result.stderr!r}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        case = Case(folder)
        for part in (users_path, few_rows, wrong_files, nccl_tests, recipe):
            part(case)
        for failure in case.failures:
            print(failure)
        print(f"{len(case.failures)} failures")
        return 1 if case.failures else 0


if __name__ == "__main__":
    sys.exit(main())
