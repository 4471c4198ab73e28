#!/usr/bin/env python3
"""readme_commands.py BINARY: runs every command that a README shows.

Commands are the lines of ```sh blocks in README.md and the folders' READMEs. Those that start with stepsim run in an empty folder with
the repository's examples beside them; quickstart.sh is what .ci/run calls, so its presence there is checked; cmake, ctest and benchmark lines
name a preset or target that must exist.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(readme):
    for block in BLOCK.findall(readme.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.split("  #")[0].strip()
            if line and not line.startswith("#"):
                yield line


def problem_of(line, binary, folder):
    words = shlex.split(line)
    if pathlib.Path(words[0]).name == "stepsim":
        text = line.replace(words[0], shlex.quote(binary), 1)
        run = subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        return "" if run.returncode == 0 else f"exit {run.returncode}: {run.stderr.strip()[:300]}"
    if words[0] == "./quickstart.sh":
        return "" if line in (ROOT / ".ci/run").read_text(encoding="utf-8") else "not in .ci/run"
    if words[0] in ("cmake", "ctest") and "--preset" in words:
        presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))
        names = {preset["name"] for preset in presets["configurePresets"]}
        return "" if words[words.index("--preset") + 1] in names else "no such preset"
    if words[0] == "cmake" and ("-S" in words or "--build" in words):
        return ""  # what quickstart.sh runs
    for word in words:
        if not word.startswith("-") and (ROOT / word).is_file():
            return ""
    target = pathlib.Path(words[0]).name
    listed = any(target in path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("CMakeLists.txt"))
    return "" if listed else "neither a file nor a target of the repository"


def main():
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    readmes = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md"))]
    count, wrong = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("examples", "tests"):
            if (ROOT / name).exists():
                os.symlink(ROOT / name, pathlib.Path(folder) / name)
        if (ROOT.parent / "shared").exists():
            os.symlink(ROOT.parent / "shared", pathlib.Path(folder) / "shared")
        for readme in readmes:
            for line in commands(readme):
                count += 1
                problem = problem_of(line, binary, folder)
                if problem:
                    wrong += 1
                    print(f"{readme.relative_to(ROOT)}: {line}: {problem}")
    print(f"{count} commands of {len(readmes)} READMEs, {wrong} wrong")
    return 1 if wrong or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
