#!/usr/bin/env python3
"""cli_outputs.py BINARY: what the program writes, where, and with which exit code."""
import csv
import gzip
import io
import json
import pathlib
import subprocess
import sys
import tempfile

JOB = "run --model llama3-8b --hardware h100-sxm-80gb --tp 8 --sequence-parallel --sequence 8192 --layers 4".split()
GPT = "run --model gpt3-175b --hardware a100-sxm-80gb --tp 8 --attention unfused".split()
ROLES = ["weights", "gradients", "optimizer_state", "activations", "activation_gradients", "recomputed", "offload_staging", "communication",
         "workspace", "logits", "other"]


class Program:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.failures = binary, pathlib.Path(folder), 0

    def __call__(self, *arguments, code=0):
        run = subprocess.run([self.binary, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        self.check(run.returncode == code, f"{' '.join(arguments)}: exit {run.returncode}, wanted {code}: {run.stderr[:300]}")
        return run

    def check(self, holds, text):
        if not holds:
            self.failures += 1
            print(text)

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())


def check_summary(program):
    run = program(*JOB)
    lines = run.stdout.splitlines()
    program.check(lines[0].startswith("FITS: "), "the verdict is not the first line")
    program.check("4 layers" in run.stdout and "1 layer," in program(*JOB[:-1], "1").stdout, "the number of layers")
    program.check(len(lines) <= 26, f"{len(lines)} lines of summary")
    program.check(all(len(line) <= 110 for line in lines), "a line of the summary is longer than 110 columns")
    begins = [line.split(":")[0] for line in lines]
    program.check(begins.index("cheapest GiB") + 2 == begins.index("cheapest time") + 1 == begins.index("cheapest change") == begins.index("evidence") - 1,
                  "the cheapest GiB, time and change")
    program.check("\x1b" not in run.stdout, "colour in a pipe")
    program.check(run.stderr == "", f"stderr: {run.stderr}")
    program.check(program(*JOB).stdout == run.stdout, "two runs print different summaries")


def check_stdout_output(program):
    run = program(*JOB, "--json", "-")
    result = json.loads(run.stdout)
    program.check(run.stderr.startswith("FITS: "), "the summary is not on stderr when an output is -")
    parts = sum(result["time"].values())
    program.check(abs(parts - result["step_time_s"]) < 1e-12, f"the time's parts add up to {parts}, not {result['step_time_s']}")
    program.check(sum(result["memory"]["at_peak"].values()) == result["memory"]["peak_allocated_bytes"], "the peak's roles do not add up")
    program.check(list(result["memory"]["at_peak"]) == ROLES, "roles of memory.at_peak")
    rows = list(csv.DictReader(io.StringIO(program(*JOB, "--memory-csv", "-").stdout)))
    peak = max(int(row["in_use_bytes"]) for row in rows if row["space"] == "device")
    program.check(peak == result["memory"]["peak_allocated_bytes"], f"peak {peak} of the memory CSV is not that of the JSON")
    program.check(rows[0].keys() >= set(ROLES), "a column of the memory CSV is missing")
    trace = json.loads(program(*JOB, "--trace", "-").stdout)
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    program.check(len(slices) >= result["simulation"]["ops"], f"{len(slices)} slices of {result['simulation']['ops']} ops")
    program.check(program.files() == [], f"files were left: {program.files()}")


def check_files(program):
    pathlib.Path(program.folder, "old.json").write_text("old", encoding="utf-8")
    program(*JOB, "--json", "old.json", "--trace", "t.json.gz", "--memory-csv", "m.csv")
    program.check(program.files() == ["m.csv", "old.json", "t.json.gz"], f"files {program.files()}")
    first = json.loads((program.folder / "old.json").read_text(encoding="utf-8"))
    json.loads(gzip.decompress((program.folder / "t.json.gz").read_bytes()))
    second = json.loads(program(*JOB, "--json", "-").stdout)
    for result in (first, second):
        del result["simulation"]["wall_s"]
    program.check(first == second, "two runs give different JSON")
    for path in program.folder.iterdir():
        path.unlink()


def check_out_of_memory(program):
    run = program(*GPT, "--json", "oom.json", code=0)
    program.check(run.stdout.startswith("OUT OF MEMORY: "), f"verdict: {run.stdout[:80]}")
    result = json.loads((program.folder / "oom.json").read_text(encoding="utf-8"))
    program.check(result["memory"]["fits"] is False, "fits")
    program.check(result["memory"]["margin_bytes"] < 0, "margin")
    program.check(result["out_of_memory"]["held_by"] != [], "holders")
    program.check(result["out_of_memory"]["requested_bytes"] > result["out_of_memory"]["free_bytes"], "request")
    program.check(result["tokens_per_s"] > 0, "the step is simulated to its end all the same")
    program(*GPT, "--must-fit", code=3)
    stopped = json.loads(program(*GPT, "--stop-at-out-of-memory", "--json", "-").stdout)
    program.check(stopped["tokens_per_s"] is None, "a stopped step has no speed")
    program.check(stopped["step_time_s"] < result["step_time_s"], "a stopped step is shorter")


def check_baseline(program):
    program(*JOB, "--json", "base.json")
    same = program(*JOB, "--check", "base.json", "--must-fit", "--min-margin", "1 GiB")
    program.check("cheapest GiB and time: not searched: with --check\n" in same.stdout, "alternatives are searched with --check")
    slower = program(*JOB, "--recompute", "full", "--check", "base.json", "--max-time", "+2%", code=3)
    lines = slower.stderr.splitlines()
    program.check(len(lines) == 1 and lines[0].startswith("check: step time "), f"check: {slower.stderr}")
    program(*JOB, "--recompute", "full", "--check", "base.json", "--max-time", "+60%", "--max-peak", "+0%")
    program(*JOB, "--max-peak", "1 GiB", code=3)


def check_resolved_job(program):
    (program.folder / "job.textproto").write_text(
        'model { name: "llama3-8b" layers: 4 }\nhardware { name: "h100-sxm-80gb" }\ntraining { sequence: 8192 }\n'
        "parallel { tp: 4 sequence_parallel: true }\n", encoding="utf-8")
    result = json.loads(program("run", "job.textproto", "--tp", "8", "--set", "training.micro_batch=1", "--json", "-").stdout)
    job = result["job"]
    program.check(job["parallel"]["tp"] == {"value": 8, "source": "--tp"}, f"tp: {job['parallel']['tp']}")
    program.check(job["training"]["sequence"] == {"value": 8192, "source": "job.textproto:3:12"}, f"sequence: {job['training']['sequence']}")
    program.check(job["training"]["micro_batch"]["source"] == "--set", "micro-batch")
    program.check(job["training"]["grad_dtype"]["value"] == "fp32", f"gradients: {job['training']['grad_dtype']}")
    program.check(job["training"]["optimizer"]["source"].startswith("default: "), "optimizer")
    same = json.loads(program(*JOB, "--json", "-").stdout)
    program.check(same["simulation"]["fingerprint"] == result["simulation"]["fingerprint"], "the same job from a file and from flags differs")


def check_other_commands(program):
    models = json.loads(program("list", "models", "--json", "-").stdout)["models"]
    program.check("llama3-8b" in [model["name"] for model in models], "list models")
    for what in ("hardware", "clusters", "stacks", "frameworks", "placements", "conventions"):
        listed = json.loads(program("list", what, "--json", "-").stdout)[what]
        table = program("list", what).stdout.splitlines()
        program.check(len(listed) > 0 and len(table) == len(listed) + 1, f"list {what}")
    explained = json.loads(program("explain", *JOB[1:], "--json", "-").stdout)
    program.check(len(explained["layers"]) == 6, "explain: embedding, 4 layers, head")
    table = program("explain", *JOB[1:], "--module-table").stdout
    program.check("core_attn" in table, "explain --module-table")
    (program.folder / "graph.textproto").write_text(
        'ops { name: "load" stream: "copy" duration: "5 us" }\nops { name: "gemm" stream: "compute" duration: "12 us" after: "load" }\n',
        encoding="utf-8")
    graph = json.loads(program("simulate", "graph.textproto", "--json", "-").stdout)
    program.check(graph["step_time_s"] == 17e-6, f"5 us + 12 us = {graph['step_time_s']}")
    (program.folder / "gemm.csv").write_text("op,dtype,m,n,k,gpu,latency_us\ngemm,bf16,4096,4096,4096,H100-SXM,1\n", encoding="utf-8")
    compared = json.loads(program("validate", "--published", "gemm.csv", "--json", "-").stdout)
    program.check(compared["rows"] == 1 and compared["detail"][0]["id"] == "2", f"validate: {compared}")
    program("validate", "--published", "gemm.csv", "--max-error", "10%", code=3)
    row = '{"schedule": "gpipe", "p": 2, "m": 2, "v": 1, "F": 1, "B": 1, "makespan": %d, "inflight": [2, 2]}'
    (program.folder / "pipeline.json").write_text(f"[{row % 6}, {row % 7}]", encoding="utf-8")
    compared = json.loads(program("validate", "--published", "pipeline.json", "--json", "-").stdout)
    program.check((compared["format"], compared["rows"], compared["mismatches"]) == ("pipeline", 2, 1), f"validate: {compared}")
    program.check(compared["detail"][1]["difference"] == "makespan 6 not 7", f"validate: {compared}")
    program("validate", "--published", "pipeline.json", "--max-error", "0", code=3)
    (program.folder / "pipeline.json").write_text(f"[{row % 6}]", encoding="utf-8")
    program("validate", "--published", "pipeline.json", "--max-error", "0")


VTRAIN = ("Parameters (billion),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
          "data parallelism,pipeline parallelism,iteration time (ms)\n")


def check_published_stacks(program):
    """The stacks of a published table: into a folder that is made, never over the table, and not of nothing."""
    rows = "".join(f"3.6,64,512,{batch},3072,32,30,2048,{tensor},{64 // tensor},1,{time}\n" for batch, tensor, time in ((4, 1, 3638.3), (8, 2, 3975.2)))
    (program.folder / "steps.csv").write_text(VTRAIN + rows, encoding="utf-8")
    program("calibrate", "--published", "steps.csv", "--write", "stacks")
    name = "a100-sxm-80gb-fp16-megatron-deepspeed@2021.textproto"
    program.check("gemm" in (program.folder / "stacks" / name).read_text(encoding="utf-8"), "calibrate --published --write")
    table = program.folder / "stacks" / name
    table.write_text(VTRAIN + rows, encoding="utf-8")
    refused = program("calibrate", "--published", f"stacks/{name}", "--write", "stacks", code=2)
    program.check("which is an input" in refused.stderr, f"calibrate over its table: {refused.stderr}")
    program.check(table.read_text(encoding="utf-8") == VTRAIN + rows, "calibrate over its table")
    (program.folder / "none.csv").write_text(VTRAIN, encoding="utf-8")
    refused = program("calibrate", "--published", "none.csv", code=2)
    program.check("found no row of a step" in refused.stderr, f"calibrate of nothing: {refused.stderr}")
    refused = program("calibrate", "--published", "steps.csv", "--where", "Parameters (billion)=99", code=2)
    program.check("found no row with --where" in refused.stderr, f"calibrate of no row: {refused.stderr}")


def check_graphs(program):
    """Capacities of a graph's hosts hold; a deadlock says what is waited for."""
    (program.folder / "host.textproto").write_text(
        'hosts { name: "h" capacity: "1 KiB" }\ndevices { name: "g" capacity: "1 GiB" host: "h" }\n'
        'storages { name: "w" size: "2 KiB" space: host device: "g" }\nops { name: "a" duration: "1 us" stream: "s" writes: "w" }\n', encoding="utf-8")
    run = program("simulate", "host.textproto", "--json", "host.json")
    program.check(run.stdout.startswith("OUT OF MEMORY: a ") and "the host memory of gpu0" in run.stdout, f"host capacity: {run.stdout}")
    program.check("host 2 KiB of 1 KiB\n" in run.stdout and "1 op, 1 storage, 1 device;" in run.stdout, f"host capacity: {run.stdout}")
    memory = json.loads((program.folder / "host.json").read_text(encoding="utf-8"))["memory"]
    program.check(memory["fits"] is False and memory["host_capacity_bytes"] == 1024, f"host capacity: {memory}")
    (program.folder / "pool.textproto").write_text(
        'pools { name: "p" space: host capacity: "1 MiB" gated: true }\nstorages { name: "w" size: "2 MiB" space: host pool: "p" }\n'
        'ops { name: "a" duration: "1 us" stream: "s" writes: "w" }\n', encoding="utf-8")
    run = program("simulate", "pool.textproto", "--json", "pool.json")
    program.check(run.stdout.splitlines()[0] == "DEADLOCK after 0 ps: a waits for ever for 2 MiB of the pool of 1 MiB", f"deadlock: {run.stdout}")
    program.check("gpu-1" not in run.stdout, f"deadlock: {run.stdout}")
    result = json.loads((program.folder / "pool.json").read_text(encoding="utf-8"))
    program.check(result["memory"]["fits"] is None and result["deadlock"]["waits_for"] == "2 MiB of the pool of 1 MiB", f"deadlock: {result}")


PIPELINE = [*JOB[:-1], "8", "--pp", "4", "--virtual-stages", "2", "--dp", "2", "--zero", "1", "--global-batch", "16"]


def check_pipeline(program):
    """One process a stage, compute first; transfers from stage to stage; memory a stage; the time adds up."""
    program(*PIPELINE, "--json", "run.json", "--trace", "trace.json", "--memory-csv", "memory.csv")
    result = json.loads((program.folder / "run.json").read_text(encoding="utf-8"))
    rows = result["memory"]["per_device"]
    program.check([row["rank"] for row in rows] == [0, 16, 32, 48], f"ranks of stages: {[row['rank'] for row in rows]}")
    program.check([row["layers"] for row in rows] == ["0, 4", "1, 5", "2, 6", "3, 7"], f"layers of stages: {[row['layers'] for row in rows]}")
    program.check(abs(sum(result["time"].values()) - result["step_time_s"]) < 1e-12, "the time's parts do not add up")
    program.check(result["time"]["pipeline_bubble_s"] > 0, "a pipeline without a bubble")
    peaks = [0] * len(rows)
    for row in csv.DictReader(io.StringIO((program.folder / "memory.csv").read_text(encoding="utf-8"))):
        if row["space"] == "device":
            peaks[int(row["device"])] = max(peaks[int(row["device"])], int(row["in_use_bytes"]))
    program.check(peaks == [row["peak_allocated_bytes"] for row in rows], f"peaks {peaks} of the memory CSV are not those of the JSON")
    events = json.loads((program.folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    program.check(names[:4] == [f"stage {i} (GPU rank {16 * i})" for i in range(4)], f"processes {names}")
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    order = sorted((event["pid"], event["args"]["sort_index"], event["tid"]) for event in events if event["name"] == "thread_sort_index")
    firsts = [threads[(pid, tid)] for i, (pid, _, tid) in enumerate(order) if i == 0 or order[i - 1][0] != pid]
    program.check(firsts[:4] == ["compute"] * 4, f"first threads {firsts}")
    starts = {event["id"]: event["pid"] for event in events if event["ph"] == "s" and event["name"] == "transfer"}
    ways = {(starts[event["id"]], event["pid"]) for event in events if event["ph"] == "f" and event["name"] == "transfer"}
    wanted = {(a, a % 4 + 1) for a in range(1, 5)} | {(a % 4 + 1, a) for a in range(1, 5)}  # forward and backward, around from chunk to chunk
    program.check(ways == wanted, f"transfers between processes {sorted(ways)}")
    last = json.loads(program(*PIPELINE, "--rank", "last", "--json", "-").stdout)["memory"]
    program.check(last["stage"] == 3 and last["peak_allocated_bytes"] == rows[3]["peak_allocated_bytes"], f"--rank last: stage {last['stage']}")


def check_offload(program):
    """Copies on their engines, host memory in the curve, the verdict; the module tables."""
    program(*JOB, "--offload-modules", "norm 1 output,input", "--json", "run.json", "--trace", "trace.json", "--memory-csv", "memory.csv")
    result = json.loads((program.folder / "run.json").read_text(encoding="utf-8"))
    offload = result["offload"]
    moved = 4 * 2 * 8192 * 4096 // 8 * 2  # layers x tensors x s h / t x bytes
    program.check((offload["bytes_out"], offload["bytes_in"], offload["copies"]) == (moved, moved, 16), f"offload: {offload}")
    program.check(offload["host_peak_bytes"] == moved == result["memory"]["host_peak_bytes"], f"host peak {offload['host_peak_bytes']}")
    program.check(offload["verdict"]["best"] in ("keep", "offload", "recompute"), f"verdict {offload['verdict']}")
    rows = csv.DictReader(io.StringIO((program.folder / "memory.csv").read_text(encoding="utf-8")))
    program.check(max(int(row["in_use_bytes"]) for row in rows if row["space"] == "host") == moved, "host rows of the memory CSV")
    events = json.loads((program.folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    copies = [event for event in events if event["ph"] == "X" and " copy " in event["name"]]
    program.check(len(copies) == 16, f"{len(copies)} copies in the trace")
    for event in copies:
        wanted = "copy out" if " copy out " in event["name"] else "copy in"
        program.check(threads[(event["pid"], event["tid"])] == wanted, f"{event['name']} on {threads[(event['pid'], event['tid'])]}")
    program.check(any(event["ph"] == "C" and event["name"] == "host memory" for event in events), "no host memory in the trace")
    program.check(json.loads(program(*JOB, "--json", "-").stdout)["offload"] is None, "offload of a job that moves nothing")
    explained = json.loads(program("explain", *JOB[1:], "--offload-modules", "core_attn", "--json", "-").stdout)
    tables = {row["name"]: row["tensors"] for row in explained["offload_modules"]}
    moved = sorted(row["name"] for row in explained["tensors"] if row["placement"] == "offload" and row["layer"] == "layer 0")
    program.check(moved == sorted(tables["core_attn"]), f"explain: {moved} moved, core_attn is {tables['core_attn']}")
    lives = [row["lives"] for row in explained["tensors"] if row["placement"] == "offload"]
    program.check(all(len(life) == 2 and " copy in " in life[1]["born"] and life[0]["dies"] != "" for life in lives), "lives of what moves")
    table = program("explain", *JOB[1:], "--module-table").stdout
    program.check("--recompute-modules of" in table and "--offload-modules of" in table, "explain --module-table")


def check_compare(program):
    run = program("compare", *JOB[1:], "--set", "placement.recompute=full", "--json", "compare.json")
    program.check(run.stdout.startswith("1: the job ") and "2: with placement.recompute=full " in run.stdout, f"compare: {run.stdout[:200]}")
    compared = json.loads((program.folder / "compare.json").read_text(encoding="utf-8"))
    base, full = (json.loads(program(*JOB, *more, "--json", "-").stdout) for more in ([], ["--recompute", "full"]))
    times = [job["step_time_s"] for job in compared["jobs"]]
    program.check(times == [base["step_time_s"], full["step_time_s"]], f"compare: step times {times}")
    explained = sum(op["difference_s"] for op in compared["differences"][0]["ops"])
    program.check(abs(explained - (times[1] - times[0])) < 1e-9, f"compare: ops explain {explained} of {times[1] - times[0]}")
    for name, tp in (("a", 8), ("b", 4), ("c", 2)):
        (program.folder / f"{name}.textproto").write_text(
            f'model {{ name: "llama3-8b" layers: 2 }}\nhardware {{ name: "h100-sxm-80gb" }}\ntraining {{ sequence: 8192 }}\nparallel {{ tp: {tp} }}\n',
            encoding="utf-8")
    several = json.loads(program("compare", "a.textproto", "b.textproto", "c.textproto", "--set", "training.sequence=4096", "--json", "-").stdout)
    program.check([job["label"] for job in several["jobs"]] == ["a.textproto", "b.textproto", "c.textproto"], "compare: labels")
    changed = {row["path"]: row["values"] for row in several["changed"]}
    program.check(changed["parallel.tp"] == ["8", "4", "2"] and "training.sequence" not in changed, f"compare: {changed}")
    program.check(program("compare", "a.textproto", "b.textproto", "--json", "a.textproto", code=2).stdout == "", "an input was overwritten")


def check_help(program):
    text = program("run", "--help").stdout
    for flag in ("--model", "--recompute-segments", "--trace", "--pp", "--virtual-stages", "--schedule", "--pp-layout", "--dp", "--zero", "--rank", "--stack", "--cp", "--ep", "--trainable", "--fp8-recipe", "--cuda-graph", "--cp-exchange", "zb-v", "dualpipe", "Examples:"):
        program.check(flag in text, f"run --help lacks {flag}")
    for later in ("--report", "--measured"):
        program.check(later not in text, f"run --help shows {later}, which is not built yet")
    program.check(program("--version").stdout.startswith("stepsim "), "--version")
    program.check("whatif" not in program("--help").stdout, "--help shows a command that is not built yet")


def main():
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    failures = 0
    checks = [check_summary, check_stdout_output, check_files, check_out_of_memory, check_baseline, check_resolved_job, check_other_commands, check_published_stacks, check_graphs, check_pipeline, check_offload, check_compare, check_help]
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            program = Program(binary, folder)
            check(program)
            failures += program.failures
    print(f"{len(checks)} checks, {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
