#!/usr/bin/env python3
"""cuda_validate.py STEPSIM STEPSIM_CUDA_VALIDATE: steps of real CUDA kernels against their simulation. Exit code 77, with the reason, where there is no GPU;
what needs none is checked there too: bad plans and arguments."""
import json
import pathlib
import subprocess
import sys
import tempfile


def run(*arguments):
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, check=False)


def expect(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


def main():
    stepsim, program = map(pathlib.Path, sys.argv[1:3])
    expect(run(program).returncode == 2, "no plan is bad input")
    expect(run(program, "--repeats", "0", "x").returncode == 2, "no repeats are bad input")
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan"
        plan.write_text("stepsim-plan-1 x")
        bad = run(program, plan)
        expect(bad.returncode == 2 and "word 2: found x, wanted a whole number" in bad.stderr, f"a bad plan: {bad.stderr}")
        expect(run(program, plan.with_name("absent")).returncode == 2, "a plan that is not there")
        plans = pathlib.Path(folder) / "plans"
        written = run(stepsim, "validate", "--backend", "cuda", "--plans", plans)
        files = sorted(plans.glob("*.plan"))
        expect(written.returncode == 0 and f"{len(files)} plans in" in written.stdout and files, f"plans: {written.stdout}{written.stderr}")
        expect(run(program, "--repeats", "1", *files).returncode in (0, 77), "the plans are read whole")
        result_file = pathlib.Path(folder) / "result.json"
        run_of_all = run(stepsim, "validate", "--backend", "cuda", "--json", result_file)
        if run_of_all.returncode == 2 and "without a device" in run_of_all.stderr:
            print("SKIP:", run_of_all.stderr.strip())
            return 77
        expect(run_of_all.returncode == 0, run_of_all.stdout + run_of_all.stderr)
        print(run_of_all.stdout)
        summary = json.loads(result_file.read_text())["summary"]
    expect(summary["gradient_mismatches"] == 0, "gradients differ between placements")
    expect(summary["peak_mismatches"] == 0, "peaks differ by more than 1 %")
    expect(summary["max_abs_error"] <= 0.25, f"a step is {summary['max_abs_error']:.1%} off")
    return 0


if __name__ == "__main__":
    sys.exit(main())
