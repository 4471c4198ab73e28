#include "tools/placement_alternatives.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace stepsim {

static PlacementPolicy selective(std::vector<std::string> modules) {
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kSelective;
  policy.modules = std::move(modules);
  return policy;
}

static PlacementPolicy halving() {
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kFull;
  policy.halving = true;
  return policy;
}

static PlacementPolicy full(RecomputeMethod method, std::int64_t num_layers) {
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kFull;
  policy.method = method;
  policy.num_layers = num_layers;
  return policy;
}

std::string placement_flags(const PlacementPolicy& policy) {
  switch (policy.granularity) {
    case RecomputeGranularity::kNone:
      return "--recompute none";
    case RecomputeGranularity::kSelective:
      return fmt::format("--recompute selective --recompute-modules {}",
                         policy.modules.empty() ? "core_attn" : fmt::format("{}", fmt::join(policy.modules, ",")));
    case RecomputeGranularity::kFull:
      break;
  }
  if (policy.halving) return "--recompute full --recompute-segments halving";
  const char* const method = policy.method == RecomputeMethod::kBlock ? " --recompute-method block" : "";
  const bool usual = policy.method == RecomputeMethod::kUniform && policy.num_layers == 1;
  return fmt::format("--recompute full{}", method) + (usual ? "" : fmt::format(" --recompute-num-layers {}", policy.num_layers));
}

// Whether the flags say all of the policy.
static bool is_flags_only(const PlacementPolicy& policy) {
  return policy.segments == 0 && policy.segment_sizes.empty() && policy.rows.empty() && !policy.offloads();
}

static StepTemplates templates_of(const Job& job) { return step_templates({job.model, job.training, job.parallel, job.framework}); }

// The largest model chunk, to which a policy's counts refer.
static LayerStack largest_chunk(const Job& job, const LayerStack& stack) {
  const ParallelLayout& parallel = job.parallel;
  const std::int32_t chunks = chunks_of_stage(parallel.schedule, parallel.virtual_stages);
  const StageLayout stages = stage_layout(job.model.layers, parallel.pipeline, chunks, parallel.split, parallel.schedule);
  const auto most = std::max_element(stages.parts.begin(), stages.parts.end(),
                                     [](const ModelChunk& a, const ModelChunk& b) { return a.layers < b.layers; });
  return stack.part(most->first_layer, most->layers);
}

static std::vector<PlacementPolicy> accepted_placements(const Job& job, const LayerStack& stack) {
  const LayerStack chunk = largest_chunk(job, stack);
  const std::int64_t layers = chunk.layers();
  const std::vector<PlacementPolicy> usual = {{},
                                              selective({"layernorm"}),
                                              selective({"act"}),
                                              selective({"core_attn"}),
                                              selective({"mlp"}),
                                              selective({"layernorm", "act"}),
                                              full(RecomputeMethod::kUniform, 1),
                                              full(RecomputeMethod::kUniform, 2),
                                              full(RecomputeMethod::kUniform, 4),
                                              full(RecomputeMethod::kUniform, 8),
                                              full(RecomputeMethod::kBlock, layers / 2),
                                              halving()};
  const std::string own = is_flags_only(job.placement) ? placement_flags(job.placement) : "";
  std::vector<PlacementPolicy> accepted;
  for (const PlacementPolicy& policy : usual) {
    if (placement_flags(policy) == own) continue;
    try {
      check_policy(policy, chunk, job.training.attention);
    } catch (const InputError&) {
      continue;  // a module that the model has not, more layers than it has
    }
    accepted.push_back(policy);
  }
  return accepted;
}

std::vector<PlacementPolicy> usual_placements(const Job& job) {
  const StepTemplates templates = templates_of(job);
  return accepted_placements(job, layer_stack(templates, job.model.layers));
}

// An upper bound: halving runs an op of a layer forward at most 1 + ceil(log2(layers)) / 2 times on average, the others twice.
static std::int64_t most_ops(const Job& job, const LayerStack& stack, std::size_t placements) {
  const auto forwards = 2 + static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(job.model.layers))) / 2;
  const std::vector<std::int64_t> layers = stack.layers_of_kinds();
  std::int64_t of_layers = 0;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    const LayerTemplate& layer = stack.kind(kind);
    const auto of_layer = forwards * static_cast<std::int64_t>(layer.forward.size()) + static_cast<std::int64_t>(layer.backward.size());
    of_layers += of_layer * layers[static_cast<std::size_t>(kind)];
  }
  // Below 10^18: the job's own step was built, so layers x micro-batches are below kMostGraphOps.
  return of_layers * micro_batches_of(job) * static_cast<std::int64_t>(placements);
}

PlacementAlternatives placement_alternatives(const Job& job, const StepRun& run) {
  PlacementAlternatives alternatives;
  alternatives.own = figures_of(run.run);
  alternatives.offload = offload_verdict(job, run);
  if (job.stop_at_out_of_memory) {
    alternatives.not_searched = "the job stops at out of memory";
    return alternatives;
  }
  const StepTemplates templates = templates_of(job);
  const LayerStack stack = layer_stack(templates, job.model.layers);
  const std::vector<PlacementPolicy> policies = accepted_placements(job, stack);
  const std::int64_t ops = most_ops(job, stack, policies.size());
  if (ops > kMostAlternativeOps) {
    alternatives.not_searched = fmt::format("the usual placements are up to {} ops, more than {}", ops, kMostAlternativeOps);
    return alternatives;
  }
  for (const PlacementPolicy& policy : policies) {
    alternatives.tried.push_back({policy, placement_flags(policy), figures_with(job, run, policy)});
  }
  return alternatives;
}

// Smaller is better, from the first difference on; equal ones: the first.
struct Rank {
  bool unfit = false, dear = false;
  double price = 0;  // what is gained, negated, or what it costs per unit gained
  auto operator<=>(const Rank&) const = default;
};

static Rank rank_of(bool unfit, std::int64_t gained, std::int64_t paid) {
  const auto gain = static_cast<double>(gained);
  return {unfit, paid > 0, paid > 0 ? static_cast<double>(paid) / gain : -gain};
}

std::optional<std::size_t> cheapest_memory(const StepFigures& own, const std::vector<PlacementAlternative>& tried) {
  constexpr std::int64_t kEnough = std::int64_t{64} << 20;
  const std::int64_t least = std::max(std::min(kEnough, own.peak.value / 100), std::int64_t{1});
  std::optional<std::size_t> best;
  Rank best_rank;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    const StepFigures& other = tried[i].figures;
    const std::int64_t freed = own.peak.value - other.peak.value;
    if (freed < least) continue;
    const Rank rank = rank_of(false, freed, (other.step - own.step).count());
    if (best && !(rank < best_rank)) continue;
    best = i;
    best_rank = rank;
  }
  return best;
}

std::optional<std::size_t> cheapest_time(const StepFigures& own, const std::vector<PlacementAlternative>& tried) {
  const std::int64_t least = std::max<std::int64_t>(own.step.count() / 1000, 1);
  std::optional<std::size_t> best;
  Rank best_rank;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    const StepFigures& other = tried[i].figures;
    const std::int64_t saved = (own.step - other.step).count();
    if (saved < least) continue;
    const Rank rank = rank_of(!other.fits, saved, other.peak.value - own.peak.value);
    if (best && !(rank < best_rank)) continue;
    best = i;
    best_rank = rank;
  }
  return best;
}

}  // namespace stepsim
