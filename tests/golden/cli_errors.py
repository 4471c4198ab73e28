#!/usr/bin/env python3
"""cli_errors.py BINARY: bad input ends with exit code 2, one line on stderr, nothing on stdout and no file written or changed."""
import pathlib
import shlex
import subprocess
import sys
import tempfile

JOB = "--hardware h100-sxm-80gb --sequence 4096"
OUTPUTS = "--json out.json --trace out.trace.json.gz --memory-csv out.csv"

# Files that the cases read.
FILES = {
    "unknown_field.textproto": b'model { name: "llama3-8b" }\nparalel { tp: 8 }\n',
    "unknown_field.json": b'{"model": {"name": "llama3-8b"},\n "training": {"seqence": 1}}',
    "twice.textproto": b'training { sequence: 1\n  sequence: 2 }\n',
    "heads.textproto": b'model { name: "llama3-8b" }\nhardware { name: "h100-sxm-80gb" }\ntraining { sequence: 4096 }\nparallel { tp: 5 }\n',
    "utf16.textproto": 'model { name: "llama3-8b" }'.encode("utf-16"),
    "latin1.textproto": b'model { name: "llama\xe9" }',
    "binary.textproto": b'model { name: "llama\x00" }',
    "open.textproto": b'model { name: "llama3-8b"\n',
    "deep.json": b'{"model": ' * 100000,
    "unit.textproto": b'base: "h100-sxm-80gb"\nhbm: "3350"\n',
    "truncated.json": b'{"model_type": "llama", "hidden_size": 4096, "num_hid',
    "no_layers.json": b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096}',
    "cycle.textproto": b'ops { name: "a" stream: "x" duration: "1 us" after: "b" }\nops { name: "b" stream: "y" duration: "1 us" after: "a" }\n',
    "graph_unit.textproto": b'ops { name: "a" stream: "x" duration: "5" }\n',
    "no_op.textproto": b'ops { name: "a" stream: "x" duration: "1 us" after: "nobody" }\n',
    "rows.csv": b"op,dtype,m,n,k,gpu,latency_us\ngemm,bf16,1,1\n",
    "table.csv": b"op,dtype,m,n,k,gpu,latency_us\n",
    "empty.csv": b"",
    "baseline.json": b'{"a": 1}',
    "deep_baseline.json": b"[" * 100000,
    "other_version.json": b'{"schema_version": 0, "memory": {}}',
    "other_job.json": b'{"schema_version": 1, "memory": {}, "job": {"model": {"name": {"value": "gpt2-124m"}}, "hardware": {"name": {"value": "h100-sxm-80gb"}}}}',
    "long.textproto": b'model { name: "' + b"x" * 100000 + b'" }',
    "large.json": b" " * ((64 << 20) + 1),
    "rows.textproto": b'rows { tensor: "act" action: "recompute" }\nrows { tensor: "act"\n  first_layer: 99 action: "keep" }\n',
    "shard.textproto": b'model { name: "llama3-8b" }\nhardware { name: "h100-sxm-80gb" }\ntraining { sequence: 4096 }\nparallel { dp: 8 zero: 3\n  shard: 5 }\n',
    "switch.textproto": b'model { name: "llama3-8b" }\nparallel { pp: 2\n  deallocate_outputs: 2 }\n',
    "word.textproto": b'parallel { deallocate_outputs: "yes" }\n',
    "huge.textproto": b"training { sequence: 99999999999999999999 }\n",
    "no_layout.textproto": b'model { name: "llama3-8b" }\nhardware { name: "h100-sxm-80gb" }\ntraining { sequence: 4096 }\nparallel { pp: 2\n  pp_layout: "" }\n',
    "empty.json": b" \n",
    "other_rank.json": b'{"schema_version": 1, "memory": {}, "job": {"model": {"name": {"value": "llama3-8b"}}, "hardware": {"name": {"value": "h100-sxm-80gb"}}, "parallel": {"pp": {"value": 4}, "rank": {"value": "worst"}}}}',
    "pipeline_text.json": b'[{"schedule": "gpipe", "p": 2, "m": 2, "F": 1, "B": 1, "makespan": 6},\n {"schedule": "gpipe", "p": 2, "m": 2, "F": "1", "B": 1, "makespan": 6}]',
    "pipeline_null.json": b'[{"schedule": "gpipe", "p": 2, "m": 2, "F": 1, "B": 1, "makespan": 6,\n  "inflight": [2, null]}]',
    "pipeline_none.json": b'[\n  {"schedule": "gpipe", "p": 2, "m": 2, "F": 1, "B": 1}]',
    "pipeline_name.json": b'[{"p": 2, "m": 2, "F": 1, "B": 1, "makespan": 6, "schedule": 1}]',
    "pairs.csv": b"base_id,var_id,time_ratio\nB1,B1,1.0\n",
    "results.csv": b"id,category,framework,model,gpu,n_gpus,quality,step_time_s\nB1,e2e,NeMo,llama3-8b,H100,8,A,1\nB1,e2e,NeMo,llama3-8b,H100,8,A,1\n",
    "parameters.csv": b"Parameters (billion),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)\n-3.6,64,512,4,3072,32,30,2048,1,64,1,3638.3\n",
    "usual.textproto": b'base: "h100-sxm-80gb"\nusual_cluster: "dgx-h1000"\n',
}

# Arguments -> the line, or its beginning when it ends in "...". OUT stands for outputs that must not appear.
CASES = [
    (f"run {JOB} --model llama3-8c OUT", '--model: found "llama3-8c", wanted a name of the catalog, a .textproto or a config.json, did you mean "llama3-8b"?'),
    ("run --model llama3-8b --hardware h100-sxm-80g --sequence 1 OUT", '--hardware: found "h100-sxm-80g", ...'),
    ("run --model llama3-8b --hardware h100-sxm-80gb OUT", "--sequence: found none, wanted ..."),
    (f"run {JOB} OUT", "--model: found none, wanted ..."),
    (f"run {JOB} --model llama3-8b --tp 3 OUT", "--tp: found 3, wanted a divisor of 32 heads ..."),
    (f"run {JOB} --model llama3-8b --layers 0 OUT", "--layers: found 0, wanted ..."),
    (f"run {JOB} --model llama3-8b --layers 1000000000000 OUT", "--layers: found 1000000000000, wanted ..."),
    (f"run {JOB} --model llama3-8b --layers -1 OUT", "--layers: found -1, wanted ..."),
    (f"run {JOB} --model llama3-8b --layers 99999999999999999999 OUT", "--layers: found ..."),
    (f"run {JOB} --model llama3-8b --placement {'a' * 5000} OUT", '--placement: found "aaa...'),
    (f"run {JOB} --model llama3-8b --prefetch-layers 2 OUT", "--prefetch-layers: found it without anything to offload, wanted ..."),
    (f"run {JOB} --model llama3-8b --offload-modules core_atn OUT", '--offload-modules: found "core_atn", wanted ... did you mean "core_attn"?'),
    (f"run {JOB} --model llama3-8b --offload-modules act --set placement.release_distance=-9 OUT", "--set placement.release_distance: found it with release by wait or event, wanted ..."),
    (f"run {JOB} --model llama3-8b --offload-modules act --offload-schedule synchronous --max-in-flight 0 OUT", "--max-in-flight: found it with synchronous copies, ..."),
    (f"run {JOB} --model llama3-8b --offload-modules act --prefetch-layers -1 OUT", "--prefetch-layers: found -1, wanted ..."),
    (f"run {JOB} --model llama3-8b --offload-modules act --set placement.copy_streams=5 OUT", "--set placement.copy_streams: found 5, wanted a whole number from 1 to 4"),
    (f"run {JOB} --model llama3-8b --placement te --offload-layers 33 OUT", "--offload-layers: found 33, wanted 0 to 32 (0: all)"),
    (f"run {JOB} --model llama3-8b --global-batch 1000000 OUT", "--global-batch: found a step of ..."),
    (f"run {JOB} --model llama3-8b --micro-batch 1000000000000 OUT", "--micro-batch: found 1000000000000, wanted ..."),
    (f"run {JOB} --model llama3-8b --sequence-paralel OUT", '--sequence-paralel: found an unknown flag, ... did you mean "--sequence-parallel"?'),
    (f"run {JOB} --model llama3-8b --cp 3 OUT", "--sequence: found ..., wanted a multiple of 6 ..."),
    (f"run {JOB} --model llama3-8b --ep 2 OUT", "--ep: found 2, wanted 1: llama3-8b has no experts"),
    (f"run {JOB} --model llama3-8b --trainable lora OUT", '--trainable: found "lora", wanted all, lora(r=16,targets=A+B), ...'),
    (f"run {JOB} --model jamba-v0.1 OUT", "--model: found jamba-v0.1, which has state-space layers ..., wanted ..."),
    (f"run {JOB} --model llama3-8b --zero 4 OUT", "--zero: found 4, wanted a whole number from 0 to 3"),
    (f"run {JOB} --model llama3-8b --zero 3 --pp 2 OUT", "--zero: found 3 with --pp 2, wanted 0 or 1: ... not built yet"),
    (f"run {JOB} --model llama3-8b --pp 3 OUT", "--pp: found 3, wanted a divisor of 32 layers..."),
    (f"run {JOB} --model llama3-8b --pp 64 OUT", "--pp: found 64, wanted ..."),
    (f"run {JOB} --model llama3-8b --pp 1000000000000 OUT", "--pp: found 1000000000000, wanted a whole number from 1 to 1048576"),
    (f"run {JOB} --model llama3-8b --pp 4 --virtual-stages 2 OUT", "--global-batch: found 1 (1 micro-batches), wanted a multiple of 4: ..."),
    (f"run {JOB} --model llama3-8b --pp 4 --virtual-stages 3 --global-batch 4 OUT", "--virtual-stages: found 3, wanted a divisor of the 8 layers ..."),
    (f"run {JOB} --model llama3-8b --virtual-stages 2 OUT", "--virtual-stages: found 2 with --pp 1, wanted ..."),
    (f"run {JOB} --model llama3-8b --pp 4 --virtual-stages 2 --schedule 1f1b OUT", "--virtual-stages: found 2 with --schedule 1f1b, wanted ..."),
    (f"run {JOB} --model llama3-8b --pp 4 --schedule interleaved OUT", "--schedule: found interleaved with --virtual-stages 1, wanted ..."),
    (f"run {JOB} --model llama3-8b --pp 2 --pp-layout Et*16|t*15L OUT", "--pp-layout: found 31 layers, wanted the 32 of the model"),
    (f"run {JOB} --model llama3-8b --pp 2 --pp-layout Et*16|t*16mL OUT", '--pp-layout: found "m" at column 11, wanted ...'),
    (f"run {JOB} --model llama3-8b --gpus 9 --tp 2 OUT", "--gpus: found 9, wanted a multiple of 2 (tp 2 x pp 1)"),
    (f"run {JOB} --model llama3-8b --gpus 16 --tp 2 --pp 2 --dp 2 OUT", "--gpus: found 16, wanted 8 (tp 2 x pp 2 x dp 2)"),
    (f"run {JOB} --model llama3-8b --dp 4 --global-batch 6 OUT", "--global-batch: found 6, wanted a multiple of 4 (micro-batch 1 x data-parallel 4)"),
    (f"run {JOB} --model llama3-8b --tp 32 --dp 1048576 OUT", "--gpus: found 32 x 1 x 1048576 (tp x pp x dp), wanted at most 16777216 GPUs"),
    (f"run {JOB} --model llama3-8b --pp 4 --rank 4 OUT", '--rank: found "4", wanted worst, last or a pipeline stage from 0 to 3'),
    (f"run {JOB} --model llama3-8b --dp 8 --zero 3 --set parallel.shard=3 OUT", "--set parallel.shard: found 3, wanted a divisor of --dp 8"),
    (f"run {JOB} --model llama3-8b --dp 8 --set parallel.bucket_size=25 OUT", '--set parallel.bucket_size: found "25", wanted ...'),
    (f"run {JOB} --model llama3-8b --pp 2 --set parallel.p2p=fast OUT", '--set parallel.p2p: found "fast", wanted one of blocking, batched, overlapped'),
    (f"run {JOB} --model llama3-8b --grad-dtype fp16 OUT", "--grad-dtype: found fp16, wanted fp32 or bf16 with --precision bf16"),
    ("run shard.textproto OUT", "shard.textproto:5:3: found 5, wanted a divisor of --dp 8"),
    (f"run {JOB} --model llama3-8b --tp OUT", "--tp: found ..."),
    (f"run {JOB} --model llama3-8b --recompute ful OUT", '--recompute: found "ful", wanted one of none, full, selective, did you mean "full"?'),
    (f"run {JOB} --model llama3-8b --set hardware.memory=80 OUT", "--set hardware.memory: found ..."),
    (f"run {JOB} --model llama3-8b --json - --memory-csv -", "--memory-csv: found -, which --json has, wanted a file"),
    (f"run {JOB} --model llama3-8b --json same.json --memory-csv ./same.json", "--memory-csv: found ./same.json, which --json writes, wanted another file"),
    ("run heads.textproto --tp 8 --json heads.textproto", "--json: found heads.textproto, which is an input, wanted another file"),
    (f"run {JOB} --model llama3-8b --json no/such/folder/out.json --memory-csv out.csv", "no/such/folder/out.json: found ..."),
    (f"run {JOB} --model llama3-8b --memory-csv out.csv --json /dev/full", "/dev/full: found ..."),
    (f"run {JOB} --model llama3-8b --trace out.pftrace", "--trace: found out.pftrace, which is not built yet, ..."),
    (f"run {JOB} --model llama3-8b --check baseline.json OUT", "baseline.json: found no JSON of a run, ..."),
    (f"run {JOB} --model llama3-8b --max-time 3 OUT", '--max-time: found "3", wanted a time ...'),
    ("run unknown_field.textproto OUT", 'unknown_field.textproto:2:1: found unknown field "paralel", wanted a field of Job, did you mean "parallel"?'),
    ("run unknown_field.json OUT", 'unknown_field.json:2:15: found unknown field "seqence", wanted a field of Training, did you mean "sequence"?'),
    ("run twice.textproto OUT", 'twice.textproto:2:3: found field "sequence" twice, wanted it once'),
    ("run heads.textproto OUT", "heads.textproto:4:12: found 5, wanted a divisor of 32 heads ..."),
    ("run utf16.textproto OUT", "utf16.textproto: found UTF-16 text, wanted UTF-8"),
    ("run latin1.textproto OUT", "latin1.textproto:1:21: found bytes that are not UTF-8, wanted UTF-8 text"),
    ("run binary.textproto OUT", "binary.textproto:1:21: found a NUL byte, wanted UTF-8 text"),
    ("run open.textproto OUT", "open.textproto:2:1: found the end of the text, wanted a field name"),
    ("run deep.json OUT", 'deep.json:1:12: found unknown field "model", ...'),
    ("run missing.textproto OUT", "missing.textproto: found no such file, wanted one that exists"),
    ("run . OUT", ".: found a directory, wanted a file"),
    ("run --model llama3-8b --sequence 4096 --hardware unit.textproto OUT", 'unit.textproto:2:1: found hbm "3350", wanted a rate ...'),
    (f"run {JOB} --model truncated.json OUT", "truncated.json:1:..."),
    (f"run {JOB} --model no_layers.json OUT", "no_layers.json..."),
    ("simulate cycle.textproto OUT", "cycle.textproto:..."),
    ("simulate graph_unit.textproto OUT", "graph_unit.textproto:1:29: found ..."),
    ("simulate no_op.textproto OUT", "no_op.textproto:1:..."),
    ("simulate missing.textproto OUT", "missing.textproto: found no such file, wanted one that exists"),
    ("simulate utf16.textproto OUT", "utf16.textproto: found UTF-16 text, wanted UTF-8"),
    ("validate --published rows.csv --json out.json", "rows.csv:2:1: found 4 cells, wanted 7 as in the head"),
    ("validate --published empty.csv --json out.json", "empty.csv: found no line, ..."),
    ('run --model llama3-8b --hardware h100-sxm-80gb --sequence 1024 --pp 2 --global-batch 2 --trainable "frozen(embedding+layers)" OUT', "--trainable: found layers that no gradient passes with --pp 2, wanted --pp 1: ..."),
    ('run --model llama3-8b --hardware h100-sxm-80gb --sequence 1024 --pp 2 --global-batch 2 --trainable "lora(r=8,targets=head)" OUT', "--trainable: found layers that no gradient passes ..."),
    ('run --model llama3-8b --hardware h100-sxm-80gb --sequence 1024 --trainable "lora(r=16,targets=query+value)" OUT', '--trainable: found target "query", wanted a linear layer ...'),
    ('run --model mixtral-8x7b --hardware h100-sxm-80gb --sequence 1024 --trainable "lora(r=16,targets=router)" OUT', '--trainable: found target "router", wanted a linear layer ...'),
    ("run --model llama3-8b --hardware h100-sxm-80gb --sequence 1024 --precision mxfp8 OUT", "--precision: found mxfp8, wanted fp8 or wider on h100-sxm-80gb: ..."),
    ("run --model mixtral-8x7b --layers 4 --hardware gb200-nvl72 --sequence 1024 --tp 4 --sequence-parallel --zero 2 --set parallel.expert_tp=1 OUT", "--zero: found 2 with --dp 1 and experts that 4 ranks share, ..."),
    ("run --model t5-large --layers 1 --hardware h100-sxm-80gb --sequence 512 OUT", "--layers: found 1, wanted 2 or more of t5-large, ..."),
    ("validate --published table.csv --format placement --json out.json", '--format: found "placement", wanted one of auto, results, pairs, mpt, ...'),
    ("list modles", 'list: found "modles", wanted ... did you mean "models"?'),
    ("whatif a", "whatif: found a command that is not built yet, ..."),
    (f"compare {JOB} --model llama3-8b --json out.json", "compare: found one job and nothing that changes it, wanted two jobs, or one and --set PATH=VALUE"),
    ("compare missing.textproto heads.textproto --json out.json", "missing.textproto: found no such file, wanted one that exists"),
    (f"compare {JOB} --model llama3-8b --set parallel.tp=3 --json out.json", "--set parallel.tp: found 3, ..."),
    (f"compare {JOB} --model llama3-8b --set parallel.tp=8 --trace out.json", "--trace: found an unknown flag, wanted one of `stepsim compare --help`..."),
    (f"run {JOB} --model llama3-8b --gpus 0 OUT", "--gpus: found 0, wanted a whole number, at least 1"),
    (f"run {JOB} --model llama3-8b --gpus -8 OUT", "--gpus: found -8, wanted a whole number, at least 1"),
    (f"run {JOB} --model llama3-8b --global-batch 9223372036854775807 OUT", "--global-batch: found 9223372036854775807, wanted a whole number from 1 to 1048576"),
    (f"run {JOB} --model llama3-8b --layers 9223372036854775807 OUT", "--layers: found 9223372036854775807, wanted a smaller number"),
    (f"run {JOB} --model llama3-8b --micro-batch 4000000000000000000 --dp 4 OUT", "--micro-batch: found 4000000000000000000, wanted a whole number from 1 to 1048576"),
    ("run switch.textproto OUT", "switch.textproto:3:23: found 2, wanted true or false"),
    ("run word.textproto OUT", 'word.textproto:1:32: found "yes", wanted true or false'),
    ("run huge.textproto OUT", "huge.textproto:1:22: found 99999999999999999999, wanted a smaller whole number"),
    (f"run {JOB} --model llama3-8b --set parallel.first_stage_layers=3 OUT", "--set parallel.first_stage_layers: found 3 with --pp 1, wanted --pp 2 or more, ..."),
    (f"run {JOB} --model llama3-8b --set parallel.last_stage_layers=32 OUT", "--set parallel.last_stage_layers: found 32 with --pp 1, wanted --pp 2 or more, ..."),
    (f"run {JOB} --model llama3-8b --pp 2 --set parallel.first_stage_layers=0 OUT", "--set parallel.first_stage_layers: found 0, wanted a whole number, at least 1"),
    (f"run {JOB} --model llama3-8b --dp 8 --zero 3 --set parallel.shard=0 OUT", "--set parallel.shard: found 0, wanted a whole number from 1 to 1048576"),
    (f"run {JOB} --model llama3-8b --dp 8 --set parallel.bucket_size=0.3B OUT", '--set parallel.bucket_size: found "0.3B", a fraction of a byte, wanted whole bytes'),
    (f"run {JOB} --model llama3-8b --pp 2 --pp-layout EMPTY OUT", "--pp-layout: found an empty text, wanted STRING"),
    (f"run {JOB} --model llama3-8b --set parallel.pp_layout= OUT", "--set parallel.pp_layout: found an empty text, wanted ..."),
    ("run no_layout.textproto OUT", "no_layout.textproto:5:3: found an empty text, wanted ..."),
    (f"run {JOB} --model llama3-8b --json EMPTY --trace out.json", "--json: found an empty text, wanted FILE|-"),
    (f"run {JOB} --model llama3-8b --trace EMPTY --json out.json", "--trace: found an empty text, wanted FILE|-"),
    (f"run {JOB} --model llama3-8b --check EMPTY OUT", "--check: found an empty text, wanted BASELINE.json"),
    (f"run {JOB} --model llama3-8b --must-fit= OUT", "--must-fit: found an empty text, wanted a value"),
    (f"run EMPTY {JOB} --model llama3-8b OUT", "job: found an empty text, wanted JOB"),
    (f"run empty.json {JOB} --model llama3-8b OUT", "empty.json:1:1: found an empty file, wanted a JSON object"),
    (f"run {JOB} --model llama3-8b --pp 4 --rank 1 --check other_rank.json OUT", "other_rank.json: found the baseline of --rank worst, wanted one of --rank 1"),
    ("validate --published pipeline_text.json --json out.json", 'pipeline_text.json:2:45: found F "1" as a text, wanted a number'),
    ("validate --published pipeline_null.json --json out.json", "pipeline_null.json:2:15: found inflight [2,null], wanted a list of numbers such as [2,1]"),
    ("validate --published pipeline_none.json --json out.json", "pipeline_none.json:2:3: found no makespan, wanted one of makespan, closed_form, closed_form_paper"),
    ("validate --published pipeline_name.json --json out.json", "pipeline_name.json:1:62: found schedule 1, wanted the name of one"),
    ("validate --published table.csv --format nope --evidence rows.tsv", '--format: found "nope", wanted one of auto, results, pairs, ...'),
    ("validate --backend tpu", '--backend: found "tpu", wanted cpu or cuda'),
    ("validate --backend cpu --plans plans", "--plans: found a folder with --backend cpu, wanted cuda"),
    ("validate --published table.csv --plans plans", "--plans: found a folder without --backend cuda, wanted both"),
    ("validate --published table.csv --kernels kernels.csv", "--kernels: found a file without --backend, wanted both"),
    ("validate --backend cpu --by gpu", "--by: found one with --backend, wanted none: it is about --published"),
    ("validate --published table.csv --trace step.json", "--trace: found one without --backend, wanted both"),
    ("validate --published table.csv --evidence rows.tsv", "--evidence: found it with format gemm, wanted results or mpt or vtrain"),
    ("validate --published pairs.csv --json out.json", "results.csv:3:1: found id B1 twice, wanted it once"),
    ("validate --published parameters.csv --json out.json", 'parameters.csv:2:1: found Parameters (billion) -3.6, wanted billions above zero'),
    ("calibrate --recipe job.textproto --data . --where id=1", "--where: found it with --recipe, ..."),
    (f"run {JOB} --model llama3-8b --packed 1024,,3072 OUT", '--packed: found "1024,,3072", wanted the tokens of each document, ...'),
    (f"run {JOB} --model llama3-8b --packed 4096, OUT", '--packed: found "4096,", wanted the tokens of each document, ...'),
    (f"run {JOB} --model llama3-8b --set training.packed=-1 OUT", '--set training.packed: found "-1", wanted the tokens of each document, ...'),
    (f"run {JOB} --model llama3-8b --packed 1024,3072 --max sequence OUT", "--max: found sequence with --packed, wanted micro-batch: the documents say how long the sequence is"),
    (f"run {JOB} --model llama3-8b --imbalance 1.5 OUT", "--imbalance: found 1.500000, wanted from 1 to 1, the ranks that experts are on"),
    ("rn", 'stepsim: found command "rn", wanted ... did you mean "run"?'),
    (f"run {JOB} --model llama3-8b --check deep_baseline.json OUT", "deep_baseline.json: found JSON nested deeper than 64, wanted less"),
    (f"run {JOB} --model llama3-8b --check other_version.json OUT", "other_version.json: found schema_version 0, wanted 1: ..."),
    (f"run {JOB} --model llama3-8b --check other_job.json OUT", "other_job.json: found the baseline of gpt2-124m on h100-sxm-80gb, wanted one of llama3-8b on h100-sxm-80gb"),
    (f"run {JOB} --model llama3-8b --check x --check x", "--check: found it twice, wanted it once"),
    ("validate --published table.csv --max-error 10% --json out.json", "--max-error: found no row that could be compared, wanted at least one"),
    ("run long.textproto --hardware h100-sxm-80gb OUT", 'long.textproto:1:9: found "xxx... (100008 characters), wanted ...'),
    ("run large.json OUT", "large.json: found more than 64 MiB, wanted a text file of at most 64 MiB"),
    (f"run {JOB} --model llama3-8b --placement full --recompute none OUT", '--recompute: found "none" with --placement full, wanted one of the two'),
    (f"run {JOB} --model llama3-8b --placement none --recompute-modules mlp OUT", "--recompute-modules: found it with --placement none, wanted one of the two"),
    (f"run {JOB} --model llama3-8b --placement rows.textproto OUT", "rows.textproto:3:3: found layers 99 to 31, wanted ..."),
    (f"run {JOB} --model llama3-8b --set placement.layers[99].mlp=recompute OUT", "--set placement.layers[99].mlp: found layers 99 to 99, wanted ..."),
    (f"run {JOB} --model llama3-8b --set hardware.peak.bf17=1 OUT", "--set hardware.peak.bf17: found ..."),
    (f"run {JOB} --model llama3-8b --set parallel.tp=3 OUT", "--set parallel.tp: found 3, wanted a divisor of 32 heads ..."),
    ("run --model llama3-8b --sequence 4096 --hardware usual.textproto OUT", 'usual.textproto:2:1: found "dgx-h1000", wanted ...'),
    ("run --pp", "--pp: found no value, wanted one"),
    ("--pp", "arguments: found --pp, wanted a command, --help or --version"),
    ("--versio", 'arguments: found --versio, wanted a command, --help or --version, did you mean "--version"?'),
    (f"run {JOB} --seq 3", '--seq: found an unknown flag, ... did you mean "--sequence"?'),
    ("", "stepsim: found no command, wanted one of `stepsim --help`"),
]


def matches(line, wanted):
    parts = wanted.split("...")
    if len(parts) == 1:
        return line == wanted
    at = 0
    for part in parts:
        found = line.find(part, at)
        if found < 0 or (at == 0 and part and found != 0):
            return False
        at = found + len(part)
    return wanted.endswith("...") or line.endswith(parts[-1])


def problem_of(binary, arguments, wanted):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.items():
            pathlib.Path(folder, name).write_bytes(content)
        words = shlex.split(arguments.replace("OUT", OUTPUTS if not arguments.startswith("validate") else ""))
        words = ["" if word == "EMPTY" else word for word in words]
        run = subprocess.run([binary, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        lines = run.stderr.splitlines()
        if run.returncode != 2:
            return f"exit {run.returncode}: {run.stderr[:200]}"
        if len(run.stderr) > 501 or len(lines) != 1 or not matches(lines[0], wanted):
            return f"stderr {run.stderr[:600]!r}, wanted {wanted!r}"
        if run.stdout:
            return f"stdout {run.stdout[:100]!r}"
        left = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
        return "" if left == FILES else f"files {sorted(set(left) ^ set(FILES))} or a changed input"


# Commands whose stdout has no room: what they would have written elsewhere is not written.
FULL = [
    f"run {JOB} --model llama3-8b --layers 2 {OUTPUTS}",
    f"run {JOB} --model llama3-8b --layers 2 --json - --trace out.json --memory-csv out.csv",
    f"explain {JOB} --model llama3-8b --layers 2 --json out.json",
    "list models --json out.json",
    "list models --json -",
    "--help",
    "run --help",
]


def problem_of_stdout(binary, arguments, closed):
    """Exit 2, one line, no file: with a stdout that is full, or none at all."""
    with tempfile.TemporaryDirectory() as folder, open("/dev/full", "w", encoding="utf-8") as full:
        command = ["sh", "-c", 'exec "$@" >&-', "sh", binary] if closed else [binary]
        run = subprocess.run([*command, *arguments.split()], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        lines = [line for line in run.stderr.splitlines() if ": found no room" in line or ": found No space" in line]
        left = [path.name for path in pathlib.Path(folder).iterdir()]
        return "" if run.returncode == 2 and len(lines) == 1 and not left else f"exit {run.returncode}, {run.stderr[-200:]!r}, files {left}"


def main():
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    wrong = 0
    for arguments, wanted in CASES:
        problem = problem_of(binary, arguments, wanted)
        if problem:
            wrong += 1
            print(f"stepsim {arguments}\n  {problem}")
    for arguments in FULL:
        for closed in (False, True):
            problem = problem_of_stdout(binary, arguments, closed)
            if problem:
                wrong += 1
                print(f"stepsim {arguments} with a stdout that is {'closed' if closed else 'full'}\n  {problem}")
    print(f"{len(CASES) + 2 * len(FULL)} bad inputs, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
