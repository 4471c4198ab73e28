// What a golden file's name tells beyond the arguments: the GPU, and how many of them.
#include <algorithm>
#include <array>
#include <string_view>

#include "tools/megatron_run.h"

namespace stepsim {

namespace {

struct ReleaseWorld {
  std::string_view test_case, machine;  // machine: a part of its catalog name, "": any
  std::int64_t gpus;
};
// The release tests' recipes are not public; their GPUs: spec/megatron_memory.md section 2, "Release tests". Those of the 15B model ran
// with TP8 on 256 GPUs until its arguments changed with the move to 64 GB200.
constexpr std::array<ReleaseWorld, 8> kReleases = {{
    {"gpt3_15b_8t_release_sm_gb200", "gb200", 64},
    {"gpt3_15b_8t_release", "", 256},
    {"mixtral_8x7b_alltoall_tp2pp4ep4_release", "", 128},
    {"mixtral_8x22b_tp2pp8ep8vpp1_release", "", 128},
    {"mixtral_8x7b_tp1pp4ep8vpp8_release", "", 64},
    {"deepseekv3_proxy_flex_tp1pp4", "", 64},
    {"deepseekv3_proxy_flex_tp2pp2", "", 32},
    {"deepseekv3_proxy", "", 64},
}};

constexpr std::int64_t kNode = 8;       // tests/test_utils/recipes/h100/*.yaml: gpus 8; gb200/{gpt,moe}.yaml: nodes 2, gpus 4
constexpr std::int64_t kSmallNode = 4;  // gb200/gpt-1node.yaml, moe-1node.yaml

bool begins(std::string_view text, std::string_view start) { return text.compare(0, start.size(), start) == 0; }
bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

std::string golden_machine(const std::string& golden) {
  constexpr std::array<std::array<std::string_view, 2>, 6> kNames = {{{"gb300", "gb300-nvl72"},
                                                                      {"gb200", "gb200-nvl72"},
                                                                      {"b300", "b300"},
                                                                      {"b200", "b200"},
                                                                      {"h200", "h200-sxm-141gb"},
                                                                      {"h100", "h100-sxm-80gb"}}};
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const auto& row) { return has(golden, row[0]); });
  return found == kNames.end() ? "a100-sxm-80gb" : std::string((*found)[1]);
}

std::int64_t world_size(const MegatronRun& run, std::int64_t least) {
  const std::string name = run.name(), machine = golden_machine(run.golden);
  for (const ReleaseWorld& row : kReleases) {
    if (begins(name, row.test_case) && has(machine, row.machine)) return row.gpus;
  }
  if (has(name, "_1node") || has(name, "_1N4G")) return kSmallNode;
  return has(name, "release") ? std::max(kNode, least) : kNode;
}

}  // namespace stepsim
