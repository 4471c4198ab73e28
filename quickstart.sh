#!/usr/bin/env bash
# quickstart.sh        installs what is missing (Debian 12 packages of packages.txt), builds stepsim and runs the main job
# quickstart.sh test   the same with the tests, and runs them
set -euo pipefail
cd "$(dirname "$0")"

kind=${1:-run}
case $kind in
  run) wanted='^build ' ;;
  test) wanted='^(build|test) ' ;;
  *) echo "quickstart.sh: found $kind, wanted nothing or test" >&2; exit 2 ;;
esac

missing=()
for package in $(grep -E "$wanted" packages.txt | cut -d' ' -f2); do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "Installing: ${missing[*]}"
  as_root=()
  [[ $(id -u) == 0 ]] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

tests=$([[ $kind == test ]] && echo ON || echo OFF)
# CUDA kernels, where there is nvcc, for one kind of GPU: it takes half a minute for each.
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTEPSIM_TESTS="$tests" -DSTEPSIM_BENCH="$tests" \
  -DSTEPSIM_CUDA="${tests/ON/AUTO}" -DSTEPSIM_CUDA_ARCHITECTURES=90-real
cmake --build build

if [[ $kind == test ]]; then
  ctest --test-dir build --output-on-failure -j2
else
  build/stepsim run --model llama3-8b --hardware h100-sxm-80gb --tp 8 --sequence-parallel --sequence 8192 \
    --micro-batch 1 --recompute full --trace build/step.json.gz
  echo "The trace is build/step.json.gz: open it in https://ui.perfetto.dev or chrome://tracing."
fi
