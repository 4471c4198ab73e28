#!/usr/bin/env bash
# cuda_node.sh FOLDER: on a machine with a GPU, CUDA, CMake and a C++ compiler: builds stepsim_cuda_validate for its GPU, runs the plans that
# stepsim validate --backend cuda --plans FOLDER wrote, and leaves what they took in FOLDER/results.json.
set -euo pipefail
folder=$(cd "${1:?wanted the folder of the plans}" && pwd)
source=$(cd "$(dirname "$0")/../hardware/backends/cuda" && pwd)
build=${TMPDIR:-/tmp}/stepsim_cuda_build
cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DSTEPSIM_CUDA=ON -DSTEPSIM_CUDA_ARCHITECTURES="${2:-native}" > /dev/null
cmake --build "$build" -j > /dev/null
cd "$folder"
"$build/stepsim_cuda_validate" --repeats 10 --ops --observe ./*.plan > results.json.part
mv results.json.part results.json
echo "$(ls ./*.plan | wc -l) plans: $folder/results.json"
