#!/usr/bin/env python3
"""torch_saved_tensors.py BINARY [--case NAME] [--json FILE]: what PyTorch's autograd keeps of a layer against what stepsim says it keeps.

Blocks of eager modules run on the CPU. Autograd's saved tensors are recorded with torch.autograd.graph.saved_tensors_hooks, named by a
walk over the grad_fn graph, and counted by storage; `stepsim explain` says the same of the same block. Modes: plain,
torch.utils.checkpoint (both kinds), torch.autograd.graph.save_on_cpu. What PyTorch's allocator handed out and did not get back over the
forward pass is a third count, which knows nothing of saved tensors. Where PyTorch on a CPU keeps something else than on a GPU, a rule of
RULES says so; any other difference is a failure. Exit codes: 0 equal, 1 different, 77 no torch. Written for torch 1.13.
"""
import argparse
import dataclasses
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import weakref

try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    print(f"skipped: {sys.executable} has no torch ({error}); Debian: apt-get install python3-torch, run with /usr/bin/python3")
    sys.exit(77)

HEADS, HEAD_DIM, SEQUENCE, VOCAB = 4, 16, 32, 128
HIDDEN = HEADS * HEAD_DIM

# Names of saved tensors that are no activation of the layer.
PARAMETER, MASK, TABLE, NUMBER = "(parameter)", "(causal mask)", "(rotary table)", "(number)"


# --- The rules ---


@dataclasses.dataclass(frozen=True)
class Rule:
    """`applies` takes a Case and a name; `becomes` the bytes on the CPU and the bits of the dtype: bytes that stepsim should say.
    `resident`: about what is there in any case, which save_on_cpu copies all the same."""
    name: str
    why: str
    changes: str
    applies: object
    becomes: object
    resident: bool = False


RULES = [
    Rule("parameter", "products and norms save their weights; those are resident whether saved or not", "0",
         lambda case, name: name == PARAMETER, lambda size, bits: 0, resident=True),
    Rule("causal mask", "masked_fill saves its mask, a buffer of the model that all layers share", "0",
         lambda case, name: name == MASK, lambda size, bits: 0, resident=True),
    Rule("rotary table", "the products of rotary embedding save cos and sin, which the model makes once for all layers", "0",
         lambda case, name: name == TABLE, lambda size, bits: 0, resident=True),
    Rule("number", "a product with a Python number saves it as a tensor of 8 bytes, which is on the host on a GPU too", "0",
         lambda case, name: name == NUMBER, lambda size, bits: 0),
    Rule("mean's input", "mean of torch 1.13 saves its input for the number of its values; later versions save the number "
         "(tools/autograd/load_derivatives.py replaces self.sym_numel())", "0",
         lambda case, name: case.norm == "eager" and name.endswith("squares"), lambda size, bits: 0),
    Rule("dropout noise", "dropout on a CPU multiplies by noise in the tensor's dtype (aten Dropout.cpp _dropout_impl); on a GPU it is "
         "native_dropout, which saves a bool a value (is_fused_kernel_acceptable)", "bytes x 8 / bits of the dtype",
         lambda case, name: case.dropout_kernel == "noise" and name.endswith("dropout mask"), lambda size, bits: size * 8 // bits),
    Rule("norm statistics", "layer_norm on a CPU keeps mean and rstd in the input's dtype (aten layer_norm.cpp layer_norm_cpu); on a GPU "
         "in fp32 (layer_norm_kernel.cu acc_type)", "bytes x 32 / bits of the dtype",
         lambda case, name: case.norm == "layer" and case.dtype == torch.bfloat16 and name.endswith("statistics"),
         lambda size, bits: size * 32 // bits),
]
RANDOM_STATE = "(random state)"
RULES.append(Rule("random state", "checkpoint keeps the generator's state (5056 bytes of the CPU's), in host memory on a GPU too", "0",
                  lambda case, name: name == RANDOM_STATE, lambda size, bits: 0))


def rule_of(case, name):
    found = [rule for rule in RULES if rule.applies(case, name)]
    assert len(found) <= 1, f"{name}: two rules"
    return found[0] if found else None


# --- The blocks ---


class Dropout(nn.Module):
    """`kernel` noise: torch.nn.functional.dropout as it is on a CPU; native: the op that it is on a GPU."""

    def __init__(self, case):
        super().__init__()
        self.p, self.kernel = case.dropout, case.dropout_kernel

    def forward(self, x):
        if self.p > 0 and self.kernel == "native":
            return torch.native_dropout(x, self.p, True)[0]
        return functional.dropout(x, self.p, True)


class GptBlock(nn.Module):
    """nanoGPT model.py's Block without flash attention; `fused_qkv` false: three linear layers, as transformers modeling_bert.py."""

    def __init__(self, case):
        super().__init__()
        self.fused_qkv = case.fused_qkv
        self.norm_1, self.norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        if case.fused_qkv:
            self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        else:
            self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.projection = nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, case.ffn), nn.Linear(case.ffn, HIDDEN)
        self.gelu = nn.GELU()
        self.attention_dropout, self.residual_dropout, self.mlp_dropout = Dropout(case), Dropout(case), Dropout(case)
        self.register_buffer("mask", torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1).view(1, 1, SEQUENCE, SEQUENCE))

    def attention(self, x):
        batch, sequence, hidden = x.shape
        query, key, value = self.qkv(x).split(hidden, dim=2) if self.fused_qkv else (self.query(x), self.key(x), self.value(x))
        query, key, value = (each.view(batch, sequence, HEADS, HEAD_DIM).transpose(1, 2) for each in (query, key, value))
        scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(HEAD_DIM))
        scores = scores.masked_fill(self.mask[:, :, :sequence, :sequence], float("-inf"))
        output = self.attention_dropout(functional.softmax(scores, dim=-1)) @ value
        output = output.transpose(1, 2).contiguous().view(batch, sequence, hidden)
        return self.residual_dropout(self.projection(output))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp_dropout(self.fc2(self.gelu(self.fc1(self.norm_2(x)))))


class EagerRmsNorm(nn.Module):
    """transformers modeling_llama.py LlamaRMSNorm."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-5)
        return self.weight * x.to(dtype)


class RmsNormKernel(torch.autograd.Function):
    """One kernel each way, which saves what apex's and torch 2.4's do: input, weight and reciprocal root in fp32."""

    @staticmethod
    def forward(ctx, x, weight):
        rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, weight, rstd)
        return (x.float() * rstd).to(x.dtype) * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight, rstd = ctx.saved_tensors
        normalised = x.float() * rstd
        direct = gradient.float() * weight.float()
        projected = normalised * (direct * normalised).mean(-1, keepdim=True)
        weight_gradient = (gradient.float() * normalised).sum((0, 1))
        return (rstd * (direct - projected)).to(x.dtype), weight_gradient.to(weight.dtype)


class FusedRmsNorm(EagerRmsNorm):

    def forward(self, x):
        return RmsNormKernel.apply(x, self.weight)


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def repeated(x, times):
    """transformers modeling_llama.py repeat_kv."""
    batch, heads, sequence, head_dim = x.shape
    return x[:, :, None].expand(batch, heads, times, sequence, head_dim).reshape(batch, heads * times, sequence, head_dim)


class LlamaBlock(nn.Module):
    """transformers modeling_llama.py LlamaDecoderLayer with eager attention; `softmax_fp32`: its softmax in fp32; `fused_qkv`: one linear
    layer for q, k and v, of whose output v stays a view."""

    def __init__(self, case):
        super().__init__()
        self.kv_heads, self.softmax_fp32, self.fused_qkv = case.kv_heads, case.softmax_fp32, case.fused_qkv
        norm = EagerRmsNorm if case.norm == "eager" else FusedRmsNorm
        self.norm_1, self.norm_2 = norm(), norm()
        kv_width = case.kv_heads * HEAD_DIM
        self.widths = [HIDDEN, kv_width, kv_width]
        if case.fused_qkv:
            self.qkv = nn.Linear(HIDDEN, sum(self.widths), bias=False)
        else:
            self.query, self.key, self.value = (nn.Linear(HIDDEN, width, bias=False) for width in self.widths)
        self.projection = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = nn.Linear(HIDDEN, case.ffn, bias=False), nn.Linear(HIDDEN, case.ffn, bias=False)
        self.down = nn.Linear(case.ffn, HIDDEN, bias=False)
        self.silu = nn.SiLU()
        angles = torch.arange(SEQUENCE).float()[:, None] * 10000.0 ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        angles = torch.cat((angles, angles), dim=-1)[None, None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((SEQUENCE, SEQUENCE), -1e9).triu(1)[None, None])

    def attention(self, x):
        batch, sequence, _ = x.shape
        heads = self.qkv(x).split(self.widths, dim=2) if self.fused_qkv else (self.query(x), self.key(x), self.value(x))
        query, key, value = (each.view(batch, sequence, -1, HEAD_DIM).transpose(1, 2) for each in heads)
        query, key = rotated(query, self.cos, self.sin), rotated(key, self.cos, self.sin)
        key, value = repeated(key, HEADS // self.kv_heads), repeated(value, HEADS // self.kv_heads)
        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(HEAD_DIM) + self.mask
        if self.softmax_fp32:
            probabilities = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        else:
            probabilities = functional.softmax(scores, dim=-1)
        output = torch.matmul(functional.dropout(probabilities, 0.0, True), value)
        return self.projection(output.transpose(1, 2).contiguous().reshape(batch, sequence, HIDDEN))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        normalised = self.norm_2(x)
        return x + self.down(self.silu(self.gate(normalised)) * self.up(normalised))


# --- The cases ---


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    block: type
    dtype: torch.dtype
    norm: str  # layer, eager, fused
    framework: str
    settings: tuple = ()
    batch: int = 2
    ffn: int = 4 * HIDDEN
    kv_heads: int = HEADS
    dropout: float = 0.0
    dropout_kernel: str = "native"  # noise, native
    fused_qkv: bool = True
    softmax_fp32: bool = False

    @property
    def is_gpt(self):
        return self.block is GptBlock

    @property
    def precision(self):
        return "fp32" if self.dtype == torch.float32 else "bf16"


def all_cases():
    for dtype, label in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        gpt = Case(f"gpt {label}", GptBlock, dtype, "layer", "pytorch-fsdp")
        yield gpt
        yield dataclasses.replace(gpt, name=f"gpt {label}, dropout", dropout=0.1)
        yield dataclasses.replace(gpt, name=f"gpt {label}, dropout of the CPU", dropout=0.1, dropout_kernel="noise")
        yield dataclasses.replace(gpt, name=f"gpt {label}, one sequence", batch=1, dropout=0.1)
        yield dataclasses.replace(gpt, name=f"gpt {label}, separate q k v", framework="hf-eager", fused_qkv=False, dropout=0.1)
        llama = Case(f"llama {label}, fused norm", LlamaBlock, dtype, "fused", "pytorch-fsdp", ("framework.fused_qkv=false",), ffn=176,
                     kv_heads=2, fused_qkv=False)
        yield llama
        yield dataclasses.replace(llama, name=f"llama {label}, fused norm, all heads", kv_heads=HEADS)
        joint = dataclasses.replace(llama, name=f"llama {label}, fused norm and qkv", kv_heads=HEADS, fused_qkv=True, settings=())
        yield joint
        yield dataclasses.replace(joint, name=f"llama {label}, fused norm and qkv, one sequence", batch=1)
        eager = dataclasses.replace(llama, name=f"llama {label}", norm="eager", framework="transformers",
                                    settings=("framework.softmax_in_fp32=false",))
        yield eager
        yield dataclasses.replace(eager, name=f"llama {label}, softmax in fp32", softmax_fp32=True, settings=())


def linear(source, bias):
    return ("AddmmBackward0", {"mat1": source, "mat2": PARAMETER}) if bias else ("MmBackward0", {"self": source, "mat2": PARAMETER})


def norm_nodes(case, number, source):
    """Autograd's nodes of a norm of which the input is called `source`, with the names of what they save."""
    name = f"norm {number}"
    if case.norm == "layer":
        statistics = f"{name} statistics"
        return [("NativeLayerNormBackward0", {"input": source, "weight": PARAMETER, "bias": PARAMETER, "result1": statistics,
                                              "result2": statistics})]
    if case.norm == "fused":
        return [("RmsNormKernelBackward", {"0": source, "1": PARAMETER, "2": f"{name} statistics"})]
    # The cast of fp32 to fp32 is no copy.
    wide = source if case.dtype == torch.float32 else f"{name} input, fp32"
    return [("PowBackward0", {"self": wide}), ("MeanBackward1", {"self": f"{name} squares"}),
            ("RsqrtBackward0", {"result": f"{name} statistics"}),
            ("MulBackward0", {"self": wide, "other": f"{name} statistics"}),
            ("MulBackward0", {"self": PARAMETER, "other": f"{name} normalised"})]


def dropout_nodes(case, name):
    if case.dropout == 0:
        return []
    return [("NativeDropoutBackward0", {"result1": name}) if case.dropout_kernel == "native" else ("MulBackward0", {"other": name})]


def gpt_nodes(case):
    heads = ["qkv output"] * 3 if case.fused_qkv else ["query output", "key output", "value output"]
    probabilities = "attention dropped softmax" if case.dropout > 0 else "attention softmax"
    return [*norm_nodes(case, 1, "input"), *([linear("norm 1 output", True)] * (1 if case.fused_qkv else 3)),
            ("BmmBackward0", {"self": heads[0], "mat2": heads[1]}), ("MulBackward0", {"other": NUMBER}),
            ("MaskedFillBackward0", {"mask": MASK}), ("SoftmaxBackward0", {"result": "attention softmax"}),
            *dropout_nodes(case, "attention dropout mask"), ("BmmBackward0", {"self": probabilities, "mat2": heads[2]}),
            linear("attention output", True), *dropout_nodes(case, "attention residual dropout mask"),
            *norm_nodes(case, 2, "attention residual"), linear("norm 2 output", True), ("GeluBackward0", {"self": "fc1 output"}),
            linear("activation output", True), *dropout_nodes(case, "mlp residual dropout mask")]


def llama_nodes(case):
    # Behind a joint projection v is a view, which a product of several sequences copies.
    own_value = "value output" if not case.fused_qkv else "value" if case.batch > 1 else "qkv output"
    key, value = ("key, repeated", "value, repeated") if case.kv_heads < HEADS else ("key", own_value)
    wide_softmax = "attention softmax, fp32" if case.softmax_fp32 and case.dtype != torch.float32 else "attention softmax"
    rotary = [("MulBackward0", {"other": TABLE})] * 4
    return [*norm_nodes(case, 1, "input"), *([linear("norm 1 output", False)] * (1 if case.fused_qkv else 3)), *rotary,
            ("BmmBackward0", {"self": "query", "mat2": key}), ("DivBackward0", {"other": NUMBER}),
            ("SoftmaxBackward0", {"result": wide_softmax}), ("BmmBackward0", {"self": "attention softmax", "mat2": value}),
            linear("attention output", False), *norm_nodes(case, 2, "attention residual"), linear("norm 2 output", False),
            ("SiluBackward0", {"self": "gate output"}), linear("norm 2 output", False),
            ("MulBackward0", {"self": "activated gate", "other": "up output"}), linear("activation output", False)]


# --- What autograd saves ---


def storage_of(tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def storage_key(tensor):
    return storage_of(tensor).data_ptr()


@dataclasses.dataclass
class Saved:
    node: str
    operand: str
    tensor: object  # kept: its storage then is nobody else's

    @property
    def bytes(self):
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def storage_bytes(self):
        return storage_of(self.tensor).nbytes()

    def signature(self):
        return (tuple(self.tensor.shape), self.tensor.dtype, tuple(self.tensor.stride()))

    def described(self):
        return f"{self.node}.{self.operand} {list(self.tensor.shape)} {self.tensor.dtype}"


class Recorder:
    """Keeps what autograd saves, in the order in which it does."""

    def __init__(self):
        self.saved, self.read = [], []

    def pack(self, tensor):
        self.saved.append(tensor)
        return len(self.saved) - 1

    def unpack(self, index):
        self.read.append(index)
        return self.saved[index]

    def hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)


def nodes_of(function):
    seen, stack = set(), [function]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(each for each, _ in node.next_functions)


def saved_by_nodes(recorder, output):
    """The nodes that save something, as lists of Saved, in the order in which they were made. What no node owns to is an error."""
    nodes, owned = [], set()
    for node in nodes_of(output.grad_fn):
        saved = {}
        for attribute in [each for each in dir(node) if each.startswith("_saved_")] + ["saved_tensors"]:
            recorder.read.clear()
            if not hasattr(node, attribute):  # reads it: what was saved comes through unpack
                continue
            for place, index in enumerate(recorder.read):
                saved[index] = str(place) if attribute == "saved_tensors" else attribute[len("_saved_"):]
        if saved:
            owned |= set(saved)
            nodes.append((min(saved), [Saved(type(node).__name__, saved[index], recorder.saved[index]) for index in sorted(saved)]))
    lost = set(range(len(recorder.saved))) - owned
    return [each for _, each in sorted(nodes, key=lambda pair: pair[0])], sorted(lost)


def same_nodes(found, wanted):
    """Names of what the nodes save, and what differs from `wanted`."""
    named, problems = [], []
    for place in range(max(len(found), len(wanted))):
        if place >= len(found):
            problems.append(f"no node {wanted[place][0]} saves {', '.join(wanted[place][1].values())}")
            break
        saved = {each.operand: each for each in found[place]}
        if place >= len(wanted) or (found[place][0].node, set(saved)) != (wanted[place][0], set(wanted[place][1])):
            expected = f"{wanted[place][0]} of {', '.join(wanted[place][1])}" if place < len(wanted) else "nothing"
            problems.append(f"saves {'; '.join(each.described() for each in found[place])}; wanted {expected}")
            break
        named += [(wanted[place][1][operand], each) for operand, each in saved.items()]
    return named, problems


# --- Running ---


def made_block(case):
    torch.manual_seed(1)
    return case.block(case).to(case.dtype)


def leaf_of(case):
    torch.manual_seed(2)
    return torch.randn(case.batch, SEQUENCE, HIDDEN).to(case.dtype).requires_grad_()


def with_input(run):
    """The block's input is an op's output that nobody but the block holds, as of a layer amid a model."""
    return lambda leaf: run(leaf.clone())


def live_bytes(run, leaf):
    """Bytes that the allocator handed out during run(leaf) and did not get back, less the output's, and the output."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        output = run(leaf)
    # Events by operator assign an allocation to every operator that runs in its microsecond: the raw ones are one each.
    allocations = [event.nbytes() for event in profile.kineto_results.events() if event.name() == "[memory]"]
    return sum(allocations) - storage_of(output).nbytes(), output


def kind_of(block, tensor):
    key = storage_key(tensor)
    if key in {storage_key(each) for each in block.parameters()}:
        return PARAMETER
    for name, buffer in block.named_buffers():
        if key == storage_key(buffer):
            return MASK if name == "mask" else TABLE
    return NUMBER if tensor.dim() == 0 else None


def plain_run(case):
    """(named tensors, problems, live bytes, gradient of the input)"""
    block, leaf, recorder = made_block(case), leaf_of(case), Recorder()
    run = with_input(block)
    torch.manual_seed(3)
    with recorder.hooks():
        output = run(leaf)
    found, lost = saved_by_nodes(recorder, output)
    named, problems = same_nodes(found, gpt_nodes(case) if case.is_gpt else llama_nodes(case))
    problems += [f"no node owns to saved tensor {index}, {list(recorder.saved[index].shape)}" for index in lost]
    for name, saved in named:
        kind = kind_of(block, saved.tensor)
        if (kind or PARAMETER) != (name if name.startswith("(") else PARAMETER):
            problems.append(f"{saved.described()} is {kind or 'an activation'}, wanted {name}")
    del output
    torch.manual_seed(3)
    live, output = live_bytes(run, leaf)
    output.sum().backward()
    return named, problems, live, leaf.grad


def checkpointed_run(case, reentrant):
    """(what a re-run saves, live bytes, whether the input is among them, gradient of the input, tensors kept of the first run)"""
    block, leaf, packed, results = made_block(case), leaf_of(case), [], []
    original, references = torch.autograd.graph.saved_tensors_hooks, []

    class Watched(original):
        """Records what torch.utils.checkpoint's own packing gets, and what it keeps of it."""

        def __init__(self, pack, unpack):
            def watched(tensor):
                packed.append(Saved("", "", tensor.detach()))
                results.append(pack(tensor))
                return results[-1]
            super().__init__(watched, unpack)

    def run(x):
        hidden = x.clone()
        references.append(weakref.ref(hidden))
        return checkpoint(block, hidden, use_reentrant=reentrant)

    torch.manual_seed(3)
    live, output = live_bytes(run, leaf)
    input_held = references[0]() is not None
    output.sum().backward()
    gradient, leaf.grad = leaf.grad, None
    recorder = Recorder()
    torch.manual_seed(3)
    torch.autograd.graph.saved_tensors_hooks = original if reentrant else Watched
    try:
        output = run(leaf)
        forward = len(packed)
        kept = [each for each in results if isinstance(each, torch.Tensor)]
        if reentrant:
            with recorder.hooks():  # autograd runs the block again on this thread
                output.sum().backward()
        else:
            output.sum().backward()
    finally:
        torch.autograd.graph.saved_tensors_hooks = original
    rerun = [Saved("", "", each) for each in recorder.saved] if reentrant else packed[forward:]
    return rerun, live, input_held, gradient, kept


def save_on_cpu_run(case):
    """The tensors that save_on_cpu copies to the host, one by one, and the gradient of the input."""
    block, leaf, packed = made_block(case), leaf_of(case), []
    context = torch.autograd.graph.save_on_cpu(pin_memory=False)
    original = context.pack_hook

    def watched(tensor):
        packed.append(tensor)
        return original(tensor)

    context.pack_hook = watched
    torch.manual_seed(3)
    with context:
        output = with_input(block)(leaf)
    output.sum().backward()
    return packed, leaf.grad


# --- What stepsim says ---


def model_text(case):
    kind = "RMS_NORM activation: SWIGLU position: ROTARY"
    if case.is_gpt:
        kind = "LAYER_NORM activation: GELU position: LEARNED linear_bias: true"
    return (f'name: "block" source: "tests" layers: 3 hidden: {HIDDEN} heads: {HEADS} kv_heads: {case.kv_heads} ffn_hidden: {case.ffn} '
            f"vocab: {VOCAB} max_positions: {SEQUENCE} normalization: {kind}\n")


def explained(binary, case, flags):
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder, "block.textproto")
        model.write_text(model_text(case), encoding="utf-8")
        command = [binary, "explain", "--model", str(model), "--hardware", "h100-sxm-80gb", "--sequence", str(SEQUENCE), "--micro-batch",
                   str(case.batch), "--framework", case.framework, "--precision", case.precision, "--attention", "unfused", "--dropout",
                   str(case.dropout), *(word for each in case.settings for word in ("--set", each)), *flags, "--json", "-"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {run.returncode}: {run.stderr.strip()}")
    result = json.loads(run.stdout)
    layer = next(each for each in result["layers"] if each["name"] == "layer 1")  # neither the first nor the last
    return layer, {each["name"]: each for each in result["tensors"] if each["layer"] == "layer 1"}


# --- Comparing ---


DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.bool: "uint8"}


@dataclasses.dataclass
class Row:
    name: str
    saves: str = ""
    storages: dict = dataclasses.field(default_factory=dict)
    dtypes: set = dataclasses.field(default_factory=set)
    values: int = 0
    rule: str = ""
    torch_bytes: int = 0
    expected: int = 0
    stepsim: int = 0

    def problem(self, tensor):
        if self.expected != self.stepsim:
            return f"{self.name}: torch keeps {self.expected} bytes, stepsim says {self.stepsim}"
        if tensor is None:
            return ""
        if math.prod(tensor["shape"]) != self.values:
            return f"{self.name}: torch keeps {self.values} values, stepsim says {tensor['shape']}"
        dtypes = {DTYPES.get(each, str(each)) for each in self.dtypes}
        return "" if self.rule or dtypes == {tensor["dtype"]} else f"{self.name}: torch keeps {dtypes}, stepsim says {tensor['dtype']}"


def rows_of(case, named):
    rows, problems, owners = {}, [], {}
    for name, saved in named:
        row = rows.setdefault(name, Row(name))
        row.saves += ("" if row.saves == "" else ", ") + f"{saved.node.replace('Backward0', '')}.{saved.operand}"
        key = storage_key(saved.tensor)
        if owners.setdefault(key, name) != name:
            problems.append(f"{name} and {owners[key]} are one storage in torch")
        row.storages[key] = saved.storage_bytes
        row.dtypes.add(saved.tensor.dtype)
    bits = torch.finfo(case.dtype).bits
    for row in rows.values():
        row.torch_bytes = row.expected = sum(row.storages.values())
        widest = max(torch.empty((), dtype=each).element_size() for each in row.dtypes)
        row.values = row.torch_bytes // widest
        rule = rule_of(case, row.name)
        if rule:
            row.rule, row.expected = rule.name, rule.becomes(row.torch_bytes, bits)
    return rows, problems


def compare_plain(case, binary, named, live):
    rows, problems = rows_of(case, named)
    layer, tensors = explained(binary, case, [])
    for name, tensor in tensors.items():
        rows.setdefault(name, Row(name)).stepsim = tensor["bytes"]
    problems += [text for row in rows.values() if (text := row.problem(tensors.get(row.name)))]
    inside = sum(row.torch_bytes for row in rows.values() if row.name not in (PARAMETER, MASK, TABLE))
    if live != inside:
        problems.append(f"the allocator's count is {live} bytes, saved tensors are {inside}")
    if sum(each["bytes"] for each in tensors.values()) != layer["saved_bytes"]:
        problems.append("stepsim's tensors do not add up to its layer")
    return rows, problems


def compare_checkpoint(case, binary, named, gradient, reentrant):
    rerun, live, input_held, again, kept = checkpointed_run(case, reentrant)
    layer, tensors = explained(binary, case, ["--recompute", "full"])
    problems = []
    if [each.signature() for each in rerun] != [each.signature() for _, each in named]:
        problems.append(f"the re-run saves {len(rerun)} tensors, not the {len(named)} of the plain run")
    if kept or not input_held:
        problems.append(f"{len(kept)} tensors of the first run are kept, input {'held' if input_held else 'let go'}")
    if not torch.equal(gradient, again):
        problems.append("another gradient than of the plain run")
    random_state = torch.get_rng_state().numel()
    expected = live - random_state + rule_of(case, RANDOM_STATE).becomes(random_state, 8)
    if expected != layer["saved_bytes"]:
        problems.append(f"torch keeps {expected} bytes, stepsim says {layer['saved_bytes']}")
    for name, tensor in tensors.items():
        wanted = "checkpoint" if name == "input" else "recompute"
        if tensor["placement"] != wanted:
            problems.append(f"{name} is {tensor['placement']}, wanted {wanted}")
    return {"torch_bytes": live, "expected": expected, "stepsim": layer["saved_bytes"]}, problems


def copy_bytes(case, name, size):
    rule = rule_of(case, name)
    return size if rule is None or rule.resident else rule.becomes(size, torch.finfo(case.dtype).bits)


def compare_save_on_cpu(case, binary, named, gradient):
    """Which tensors leave the device, and how many bytes arrive on the host: save_on_cpu copies at each save, whatever it copied before."""
    packed, again = save_on_cpu_run(case)
    layer, tensors = explained(binary, case, ["--placement", "save-on-cpu"])
    problems, copy_problems = [], []
    if [Saved("", "", each).signature() for each in packed] != [each.signature() for _, each in named]:
        problems.append("save_on_cpu packs other tensors than the plain run saves")
    if not torch.equal(gradient, again):
        problems.append("another gradient than of the plain run")
    once = sum(row.expected for row in rows_of(case, named)[0].values())
    if once != layer["offloaded_bytes"]:
        problems.append(f"torch takes {once} bytes off the device, stepsim says {layer['offloaded_bytes']}")
    left = [name for name, tensor in tensors.items() if tensor["placement"] != "offload"]
    if left:
        problems.append(f"on the device by stepsim: {', '.join(left)}")
    copies = {}
    for name, saved in named:
        copies.setdefault(name, []).append(copy_bytes(case, name, saved.bytes))
    host = sum(sum(sizes) for sizes in copies.values())
    if host != layer["offloaded_bytes"]:
        more = [f"{name} {sum(sizes)} in {len(sizes)}" for name, sizes in copies.items()
                if sum(sizes) > (tensors[name]["bytes"] if name in tensors else 0)]
        copy_problems.append(f"torch copies {host} bytes to the host, stepsim {layer['offloaded_bytes']}: {', '.join(more)}")
    all_packed = sum(each.numel() * each.element_size() for each in packed)
    return {"save_on_cpu": ({"torch_bytes": all_packed, "expected": once, "stepsim": layer["offloaded_bytes"]}, problems),
            "host copies": ({"torch_bytes": all_packed, "expected": host, "stepsim": layer["offloaded_bytes"]}, copy_problems)}


MODES = ["plain", "checkpoint", "checkpoint, re-entrant", "save_on_cpu", "host copies"]


def compared(case, binary):
    named, problems, live, gradient = plain_run(case)
    rows, more = compare_plain(case, binary, named, live)
    sizes = {"torch_bytes": sum(row.torch_bytes for row in rows.values()), "expected": sum(row.expected for row in rows.values()),
             "stepsim": sum(row.stepsim for row in rows.values())}
    modes = {"plain": (sizes, problems + more)}
    modes["checkpoint"] = compare_checkpoint(case, binary, named, gradient, False)
    modes["checkpoint, re-entrant"] = compare_checkpoint(case, binary, named, gradient, True)
    modes.update(compare_save_on_cpu(case, binary, named, gradient))
    return rows, modes


def print_case(case, rows, modes):
    print(f"\n{case.name}: {case.framework} {' '.join(case.settings)}")
    print(f"  {'tensor':34} {'torch':>8} {'expected':>8} {'stepsim':>8}  {'rule':16} saved by")
    for row in rows.values():
        mark = " " if row.expected == row.stepsim else "*"
        print(f" {mark}{row.name:34} {row.torch_bytes:8} {row.expected:8} {row.stepsim:8}  {row.rule:16} {row.saves}")
    for mode, (sizes, problems) in modes.items():
        print(f" {' ' if not problems else '*'}{'= ' + mode:34} {sizes['torch_bytes']:8} {sizes['expected']:8} {sizes['stepsim']:8}")


def report_of(case, rows, modes):
    return {"case": case.name, "framework": case.framework, "settings": case.settings,
            "rows": [{"name": row.name, "saves": row.saves, "storages": len(row.storages), "rule": row.rule, "torch_bytes": row.torch_bytes,
                      "expected_bytes": row.expected, "stepsim_bytes": row.stepsim} for row in rows.values()],
            "modes": {mode: {**sizes, "problems": problems} for mode, (sizes, problems) in modes.items()}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--case", default="", help="only cases whose name has this in it")
    parser.add_argument("--modes", default=";".join(MODES[:-1]),
                        help="those that decide the exit code, separated by ; [all but host copies: each save is copied, README.md]")
    parser.add_argument("--framework", default="pytorch-fsdp", help="in place of pytorch-fsdp")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    modes_asked = arguments.modes.split(";")
    if not set(modes_asked) <= set(MODES):
        parser.error(f"--modes: wanted some of {'; '.join(MODES)}")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}\nrules:")
    for rule in RULES:
        print(f"  {rule.name}: {rule.why}. Bytes: {rule.changes}.")
    report, wrong = [], []
    for case in all_cases():
        if arguments.case not in case.name:
            continue
        if case.framework == "pytorch-fsdp":
            case = dataclasses.replace(case, framework=arguments.framework)
        rows, modes = compared(case, arguments.binary)
        modes = {mode: modes[mode] for mode in modes_asked}
        print_case(case, rows, modes)
        wrong += [f"{case.name}, {mode}: {text}" for mode, (_, problems) in modes.items() for text in problems]
        report.append(report_of(case, rows, modes))
    print()
    for text in wrong:
        print(f"DIFFERS {text}")
    print(f"{len(report)} cases in {len(modes_asked)} modes, {len(wrong)} differences")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 1 if wrong or not report else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as problem:
        print(f"DIFFERS {problem}")
        sys.exit(1)
