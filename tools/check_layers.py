#!/usr/bin/env python3
"""Fails on an include against the arrows of ARCHITECTURE.md, on third-party headers in our headers, on words that sim/ must not know, and on
types of one name in two files."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# folder -> folders of ours that it may include besides itself
ARROWS = {
    "sim": set(),
    "schema": {"sim"},
    "models": {"sim", "schema"},
    "hardware": {"sim", "schema"},
    "traces": {"sim", "schema"},
    "tools": {"sim", "schema", "models", "hardware", "traces"},
    "tests": {"sim", "schema", "models", "hardware", "traces", "tools"},
}
BACKENDS = "hardware/backends/"  # real kernels know sim/ alone, and nothing of hardware/ knows them
CUDA = BACKENDS + "cuda/"  # compiled by nvcc, and included by nothing else
FOREIGN_IN_HEADERS = re.compile(r'#include\s*[<"](boost/|google/protobuf|Eigen/|cuda|nlohmann/|sqlite3|mpi|zlib|fmt/|CLI/|.*\.pb\.h)')
WORDS_UNKNOWN_TO_SIM = re.compile(
    r"recompute|offload|checkpoint|megatron|llama|transformer|layernorm|fstream|iostream|stdio|printf|getenv", re.IGNORECASE)
# A type of namespace stepsim (one in an unnamed namespace stands between its braces).
TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)\b(?!::)(?!.*;\s*$)")
INCLUDE = re.compile(r'^\s*#include\s*"([^"]+)"')


def source_files():
    for folder in ARROWS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cc", ".cu", ".cuh"}:
                yield folder, path


def violations():
    for folder, path in source_files():
        name = path.relative_to(ROOT)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            include = INCLUDE.match(line)
            if include:
                target = include.group(1).split("/")[0]
                if target in ARROWS and target != folder and target not in ARROWS[folder]:
                    yield f"{name}:{number}: {folder}/ may not include {include.group(1)}"
                backend = str(name).startswith(BACKENDS)
                if backend and folder == "hardware" and not include.group(1).startswith((BACKENDS, "sim/")):
                    yield f"{name}:{number}: {BACKENDS} may not include {include.group(1)}"
                if not backend and folder == "hardware" and include.group(1).startswith(BACKENDS):
                    yield f"{name}:{number}: only tools/ and tests/ may include {include.group(1)}"
            if path.suffix in {".h", ".cuh"} and folder != "tests" and CUDA not in str(name) and FOREIGN_IN_HEADERS.search(line):
                yield f"{name}:{number}: third-party type in a header: {line.strip()}"
            if folder == "sim" and WORDS_UNKNOWN_TO_SIM.search(line):
                yield f"{name}:{number}: a word that sim/ does not know: {line.strip()}"


def types_defined_twice():
    """Two types of one name are one type to the linker, whichever comes first: undefined behaviour that crashes in some builds only."""
    files = {}
    for folder, path in source_files():
        unnamed = False
        for line in path.read_text(encoding="utf-8").splitlines():
            unnamed = line.startswith("namespace {") or (unnamed and line != "}  // namespace")
            defined = None if unnamed else TYPE.match(line)
            if defined:
                files.setdefault(defined.group(1), set()).add(str(path.relative_to(ROOT)))
    for name, places in sorted(files.items()):
        if len(places) > 1:
            yield f"{name} is defined in {', '.join(sorted(places))}"


def main():
    found = list(violations()) + list(types_defined_twice())
    for line in found:
        print(line)
    if not found:
        print("ok: no violation of the include arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
