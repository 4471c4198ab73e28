#include "tools/megatron_layout.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace stepsim {

namespace {

constexpr std::int64_t kMostRanks = 1 << 20;  // as check_layout()

std::int32_t ranks(const MegatronArguments& arguments, std::string_view flag, std::int64_t otherwise) {
  return static_cast<std::int32_t>(arguments.whole(flag, otherwise, 1, kMostRanks));
}

Dispatcher dispatcher(const MegatronArguments& arguments) {
  const std::string type = arguments.text("moe-token-dispatcher-type", "allgather");
  if (type == "allgather") return Dispatcher::kAllGather;
  if (type.compare(0, 8, "alltoall") == 0) return Dispatcher::kAllToAll;
  if (type != "flex") arguments.refuse("moe-token-dispatcher-type", "allgather, alltoall or flex");
  return arguments.text("moe-flex-dispatcher-backend", "deepep") == "hybridep" ? Dispatcher::kHybridEp : Dispatcher::kDeepEp;
}

// transformer_config.py: cp_comm_type is p2p where nothing is said; a list gives each layer its own, of which the first stands for all.
// Heads and tokens shared on two levels (a2a+p2p) send keys and values between nodes as a ring does.
ContextExchange context_exchange(const MegatronArguments& arguments) {
  const std::string types = arguments.text("cp-comm-type", "p2p");
  const std::string type = types.substr(0, types.find(' '));
  if (type == "p2p" || type == "a2a+p2p") return ContextExchange::kRing;
  if (type == "all_gather") return ContextExchange::kAllGather;
  if (type != "a2a") arguments.refuse("cp-comm-type", "p2p, all_gather, a2a or a2a+p2p");
  return ContextExchange::kAllToAll;
}

// Megatron-LM's strings for what the number of layers in each chunk says.
std::string layout_of(const std::vector<std::int64_t>& chunks) {
  std::string text = "E";
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (i > 0) text += "|";
    if (chunks[i] > 0) text += "t*" + std::to_string(chunks[i]);
  }
  return text + "L";
}

// transformer_block.py, get_num_layers_to_build: the embedding and the loss count as layers, and their chunks hold one less.
std::vector<std::int64_t> chunks_with_ends(const MegatronArguments& arguments, std::int64_t layers, std::int64_t parts) {
  const bool embedding = arguments.on("account-for-embedding-in-pipeline-split"), loss = arguments.on("account-for-loss-in-pipeline-split");
  const std::int64_t all = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
  if (all % parts != 0) arguments.refuse("num-layers", "with the ends a multiple of " + std::to_string(parts) + " model chunks");
  std::vector<std::int64_t> chunks(static_cast<std::size_t>(parts), all / parts);
  if (embedding) --chunks.front();
  if (loss) --chunks.back();
  return chunks;
}

// Likewise: the first and the last stage have their own number, the others share the rest; of a stage each chunk holds the same.
std::vector<std::int64_t> chunks_with_given_ends(const MegatronArguments& arguments, std::int64_t layers, std::int64_t stages,
                                                 std::int64_t virtual_stages) {
  const std::int64_t first = arguments.whole("decoder-first-pipeline-num-layers", 0, 0, layers);
  const std::int64_t last = arguments.whole("decoder-last-pipeline-num-layers", 0, 0, layers);
  const std::int64_t sharing = stages - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0), left = layers - first - last;
  if (sharing > 0 && (left < 0 || left % sharing != 0)) {
    arguments.refuse("num-layers", "layers that the other " + std::to_string(sharing) + " stages can share");
  }
  std::vector<std::int64_t> chunks;
  for (std::int64_t chunk = 0; chunk < virtual_stages; ++chunk) {
    for (std::int64_t stage = 0; stage < stages; ++stage) {
      std::int64_t of_stage = sharing > 0 ? left / sharing : 0;
      if (stage == 0 && first > 0) of_stage = first;
      if (stage == stages - 1 && last > 0) of_stage = last;
      if (of_stage % virtual_stages != 0) arguments.refuse("num-layers", "whole layers in each model chunk");
      chunks.push_back(of_stage / virtual_stages);
    }
  }
  return chunks;
}

// Chunks that a layout string has when its repeats are multiplied out, "Et*3|(tt|)*6tL": 8. Strings that stage_layout() will refuse give
// some number.
class LayoutBars {
 public:
  explicit LayoutBars(const std::string& text) : text_(text) {}
  std::int64_t chunks() { return bars_of_sequence(0) + 1; }

 private:
  static constexpr std::int64_t kMost = 1 << 20;
  static constexpr int kDeepest = 16;
  std::int64_t bars_of_sequence(int depth) {
    std::int64_t bars = 0;
    while (at_ < text_.size() && text_[at_] != ')') {
      const char letter = text_[at_++];
      std::int64_t one = letter == '|' ? 1 : 0;
      if (letter == '(' && depth < kDeepest) {
        one = bars_of_sequence(depth + 1);
        if (at_ < text_.size()) ++at_;
      }
      bars = std::min(kMost, bars + one * repeat());
    }
    return bars;
  }
  std::int64_t repeat() {
    if (at_ >= text_.size() || text_[at_] != '*') return 1;
    std::int64_t count = 0;
    for (++at_; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      count = std::min(kMost, 10 * count + (text_[at_] - '0'));
    return count;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

// Layers for multi-token prediction ("m") stand with the head, where this program has them anyway.
std::string without_multi_token(const MegatronArguments& arguments, std::string layout) {
  const std::size_t last_bar = layout.find_last_of('|'), first = layout.find('m');
  if (first == std::string::npos) return layout;
  if (last_bar != std::string::npos && first < last_bar) {
    arguments.refuse("pipeline-model-parallel-layout", "the m of multi-token prediction beside the head");
  }
  layout.erase(std::remove(layout.begin(), layout.end(), 'm'), layout.end());
  return layout;
}

std::int64_t virtual_stages(const MegatronArguments& arguments, std::int64_t layers, std::int64_t stages) {
  if (arguments.given("num-virtual-stages-per-pipeline-rank"))
    return arguments.whole("num-virtual-stages-per-pipeline-rank", 1, 1, 1 << 16);
  if (!arguments.given("num-layers-per-virtual-pipeline-stage")) return 1;
  const std::int64_t each = arguments.whole("num-layers-per-virtual-pipeline-stage", 1, 1, layers);
  if (layers % (stages * each) != 0) arguments.refuse("num-layers-per-virtual-pipeline-stage", "a divisor of the layers of a stage");
  return layers / (stages * each);
}

void split_layers(const MegatronArguments& arguments, std::int64_t layers, ParallelLayout& parallel) {
  if (parallel.pipeline == 1) return;  // arguments.py: what follows is about stages
  std::int64_t chunks = virtual_stages(arguments, layers, parallel.pipeline);
  const std::int64_t parts = parallel.pipeline * chunks;
  const std::string layout = without_multi_token(arguments, arguments.text("pipeline-model-parallel-layout"));
  if (!layout.empty()) {
    parallel.split.layout = layout;
    chunks = std::max<std::int64_t>(1, LayoutBars(layout).chunks() / parallel.pipeline);
  } else if (arguments.on("account-for-embedding-in-pipeline-split") || arguments.on("account-for-loss-in-pipeline-split")) {
    parallel.split.layout = layout_of(chunks_with_ends(arguments, layers, parts));
  } else if (arguments.given("decoder-first-pipeline-num-layers") || arguments.given("decoder-last-pipeline-num-layers")) {
    parallel.split.layout = layout_of(chunks_with_given_ends(arguments, layers, parallel.pipeline, chunks));
  }
  parallel.virtual_stages = static_cast<std::int32_t>(chunks);
  parallel.schedule = chunks > 1 ? PipelineKind::kInterleaved : PipelineKind::k1F1B;
  if (chunks > 1) {
    parallel.micro_batch_group = ranks(arguments, "microbatch-group-size-per-virtual-pipeline-stage", parallel.pipeline);
  }
}

// arguments.py: --data-parallel-sharding-strategy of Megatron-FSDP; PyTorch's FSDP 2 shards all.
std::int32_t sharding(const MegatronArguments& arguments) {
  if (arguments.on("use-torch-fsdp2")) return 3;
  if (arguments.on("use-megatron-fsdp")) {
    const std::string strategy = arguments.text("data-parallel-sharding-strategy", "no_shard");
    if (strategy == "optim_grads_params") return 3;
    if (strategy == "optim_grads") return 2;
    return strategy == "optim" ? 1 : 0;
  }
  return arguments.on("use-distributed-optimizer") ? 1 : 0;
}

}  // namespace

ParallelLayout megatron_layout(const MegatronRun& run, const ModelSpec& model) {
  const MegatronArguments& arguments = run.arguments;
  ParallelLayout parallel;
  parallel.tensor = ranks(arguments, "tensor-model-parallel-size", 1);
  parallel.pipeline = ranks(arguments, "pipeline-model-parallel-size", 1);
  parallel.context = ranks(arguments, "context-parallel-size", 1);
  parallel.expert = ranks(arguments, "expert-model-parallel-size", 1);
  // Without experts Megatron-LM's groups of experts are of nobody.
  if (model.has_experts()) parallel.expert_tensor = ranks(arguments, "expert-tensor-parallel-size", parallel.tensor);
  if (!model.has_experts()) parallel.expert = 1;
  parallel.dispatcher = dispatcher(arguments);
  if (parallel.context > 1) parallel.context_exchange = context_exchange(arguments);
  parallel.sequence_parallel = arguments.on("sequence-parallel") && parallel.tensor > 1;
  split_layers(arguments, model.layers, parallel);

  const std::int64_t model_ranks = std::int64_t{parallel.tensor} * parallel.pipeline * parallel.context;
  const std::int64_t expert_ranks = std::int64_t{parallel.expert_tensor_ranks()} * parallel.pipeline * parallel.expert;
  const std::int64_t least = model.has_experts() ? std::lcm(model_ranks, expert_ranks) : model_ranks;
  const std::int64_t world = world_size(run, least);
  if (world % least != 0) {
    throw InputError(arguments.where(), run.test_case + ": found a layout of " + std::to_string(least) + " GPUs, wanted one that divides " +
                                            std::to_string(world));
  }
  parallel.data = static_cast<std::int32_t>(world / model_ranks);
  parallel.zero = sharding(arguments);
  if (parallel.zero == 1) parallel.optimizer_instances = ranks(arguments, "num-distributed-optimizer-instances", 1);
  if (arguments.on("overlap-grad-reduce")) parallel.overlap_gradient_reduce = true;
  if (arguments.on("overlap-param-gather") && (parallel.zero == 1 || parallel.zero == 2)) parallel.overlap_weight_gather = true;
  return parallel;
}

}  // namespace stepsim
