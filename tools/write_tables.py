#!/usr/bin/env python3
"""write_tables.py BUILD [--bench] [--backend] [--check] [--printed FOLDER]: puts the tables that the validation tests print (and, with --bench, the speeds, with --backend, real kernels' steps) into README.md,
tests/validation/README.md and hardware/README.md.

A test prints "## table: NAME", then the rows of a Markdown table, then an empty line. README.md has the places:
<!-- table: NAME --> ... <!-- end -->. What stands in <!-- output --> ... <!-- end --> is what the ```sh block before it prints. With --check nothing is written and a difference is exit code 1 (speeds and measured steps are not compared).
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
PRINTING = ("test_activation_bytes", "test_deepseek_study", "test_host_links", "test_kernel_validation", "test_kernel_fits", "test_megatron_memory", "test_offload_cases", "test_pipeline_memory", "test_published_peaks", "test_published_steps", "test_published_tables")  # programs whose tables stand in a README
OUTPUT = re.compile(r"(```sh\n(stepsim [^`]*?)```\n\n<!-- output -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def printed_output(command, build):
    program = str((build / "stepsim").resolve())
    text = command.replace("\\\n", " ").replace("stepsim", program, 1)
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, text=True, check=True)
    return f"```text\n{run.stdout}```\n"


def output_of(program):
    run = subprocess.run([program], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{program} failed:\n{run.stdout[-2000:]}")
    return run.stdout


def tables_in(text):
    tables, name = {}, None
    for line in text.splitlines():
        if line.startswith("## table: "):
            name = line.removeprefix("## table: ").strip()
            tables[name] = []
        elif name is not None and line.startswith("|"):
            tables[name].append(line)
        elif name is not None:
            name = None
    return {key: "\n".join(rows) + "\n" for key, rows in tables.items()}


def speeds(programs):
    rows = ["| what | speed | target |", "|---|---|---|"]
    for program in programs:
        run = subprocess.run([program, "--benchmark_format=json", "--benchmark_min_time=1"], capture_output=True, text=True, check=True)
        for entry in json.loads(run.stdout)["benchmarks"]:
            rate = next(((key, value) for key, value in entry.items() if key.endswith("/s") or key.endswith("_per_second")), None)
            ops = f", {entry['ops'] / 1e6:.3g} million ops" if "ops" in entry else ""
            speed = f"{rate[1] / 1e6:.2f} million {rate[0].removesuffix('/s').removesuffix('_per_second')}/s" if rate else (
                f"{entry['real_time']:.3g} {entry['time_unit']}{ops}")
            rows.append(f"| {entry['name'].replace('/', ', ').replace('_', ' ')} | {speed} | {entry.get('label', '')} |")
    return "\n".join(rows) + "\n"


def measured_steps(build):
    """Steps that real kernels take on this machine, against their simulation."""
    run = subprocess.run([build / "stepsim", "validate", "--backend", "cpu", "--json", "-"], capture_output=True, text=True, check=True)
    result = json.loads(run.stdout)
    rows = ["| model | placement | step ms | simulated | error | exposed copies ms | simulated | device peak MiB | device and host peaks | gradients |",
            "|---|---|---|---|---|---|---|---|---|---|"]
    for case in result["cases"]:
        same = case["measured_peak_bytes"] == case["simulated_peak_bytes"] and (
            case["measured_host_peak_bytes"] == case["simulated_host_peak_bytes"])
        rows.append(f"| {case['model']} | {case['placement']} | {1e3 * case['measured_step_s']:.1f} | {1e3 * case['simulated_step_s']:.1f} | "
                    f"{100 * case['error']:+.1f} % | {1e3 * case['measured_exposed_copy_s']:.1f} | {1e3 * case['simulated_exposed_copy_s']:.1f} | "
                    f"{case['measured_peak_bytes'] / 2**20:.2f} | {'equal' if same else 'DIFFER'} | "
                    f"{'equal' if case['gradients_equal'] else 'DIFFER'} |")
    summary = result["summary"]
    order = "none differ" if summary["order_agreement"] is None else f"{100 * summary['order_agreement']:.0f} % of pairs in order"
    rows.append(f"| all | {result['machine']} | | | median {100 * summary['median_abs_error']:.1f} %, largest "
                f"{100 * summary['max_abs_error']:.1f} %; {order} | | | | {summary['peak_mismatches']} differ | "
                f"{summary['gradient_mismatches']} differ; repeats differed by at most {100 * summary['repeat_spread']:.0f} % |")
    return "\n".join(rows) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--backend", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--printed", type=pathlib.Path, help="where the tests' output was kept by ctest, instead of running them again")
    arguments = parser.parse_args()

    tables = {}
    for name in PRINTING:
        kept = arguments.printed / f"{name}.txt" if arguments.printed else None
        text = kept.read_text(encoding="utf-8") if kept else output_of(arguments.build / "tests/validation" / name)
        tables |= tables_in(text)
    if arguments.bench:
        tables["speed"] = speeds(sorted(path for path in (arguments.build / "tests/bench").glob("*_bench") if path.is_file()))

    if arguments.backend:
        tables["backend-cpu"] = measured_steps(arguments.build)

    missing, different = set(), []

    def replaced(match):
        name = match.group(2)
        if (name == "speed" and not arguments.bench) or (name == "backend-cpu" and not arguments.backend):
            return match.group(0)
        if name not in tables:
            missing.add(name)
            return match.group(0)
        return match.group(1) + tables[name] + match.group(4)

    for readme in (ROOT / "README.md", ROOT / "tests/validation/README.md", ROOT / "hardware/README.md"):
        before = readme.read_text(encoding="utf-8")
        after = PLACE.sub(replaced, before)
        after = OUTPUT.sub(lambda match: match.group(1) + printed_output(match.group(2), arguments.build) + match.group(4), after)
        if after != before:
            different.append(readme)
        if not arguments.check:
            readme.write_text(after, encoding="utf-8")
    if missing:
        print("tables that no test printed (their data may be absent):", ", ".join(sorted(missing)))
    if arguments.check:
        for readme in different:
            print(f"{readme.relative_to(ROOT)} differs from what the tests print: run tools/write_tables.py")
        return 1 if different else 0
    print(f"{len(tables)} tables printed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
