// What rows of published/results.csv have in common, by its columns (spec published_measurements.md section 1): model, machine, layout,
// batch. How a source ran is its translator's.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "hardware/machine_spec.h"
#include "models/model_spec.h"
#include "sim/input_error.h"
#include "tools/published_results.h"

namespace stepsim {

namespace {

ModelSpec catalog_model(const std::string& name) {
  try {
    return load_model(name);
  } catch (const InputError&) {
    throw UntranslatedRow{fmt::format("dimensions of {} are unknown", name)};
  }
}

void add_machine(PublishedStep& step, const RowCells& cells) {
  const std::string gpu(cells.text("gpu"));
  try {
    load_gpu(gpu);
  } catch (const InputError&) {
    throw UntranslatedRow{gpu.empty() ? "the GPU is unknown" : fmt::format("GPU {} is unknown", gpu)};
  }
  step.set("--hardware", "hardware.name", gpu);
}

void add_model(PublishedStep& step, const RowCells& cells) {
  const std::string name(cells.text("model"));
  const ModelSpec model = catalog_model(name);
  step.set("--model", "model.name", name);
  if (cells.has("layers") && cells.whole("layers", 1, kMostOfCell) != model.layers) {
    step.set("--layers", "model.layers", std::to_string(cells.whole("layers", 1, kMostOfCell)));
  }
  struct Dimension {
    std::string_view column;
    const char* field;
    std::int64_t catalog;
    bool matters = true;
  };
  const bool latent = model.is_latent(), experts = model.has_experts();  // of latent heads the columns say other things
  const Dimension dimensions[] = {{"hidden", "hidden", model.hidden},
                                  {"heads", "heads", model.heads},
                                  {"kv_heads", "kv_heads", model.kv_heads, !latent},
                                  {"head_dim", "head_dim", model.head_dim, !latent},
                                  {"ffn", "ffn_hidden", model.ffn_hidden},
                                  {"vocab", "vocab", model.vocab},
                                  {"n_experts", "experts.experts", model.experts.experts, experts},
                                  {"top_k", "experts.top_k", model.experts.top_k, experts},
                                  {"moe_ffn", "experts.ffn_hidden", model.experts.ffn_hidden, experts}};
  for (const Dimension& dimension : dimensions) {
    if (!dimension.matters || !cells.has(dimension.column)) continue;
    const std::int64_t value = cells.whole(dimension.column, 1, kMostOfCell);
    if (value != dimension.catalog) step.dimensions.emplace_back(dimension.field, value);
  }
}

std::int64_t count(const RowCells& cells, std::string_view column) { return cells.has(column) ? cells.whole(column, 1, kMostOfCell) : 1; }

void add_layout(PublishedStep& step, const RowCells& cells) {
  constexpr std::array<std::array<const char*, 3>, 4> kRanks = {
      {{"tp", "--tp", "parallel.tp"}, {"pp", "--pp", "parallel.pp"}, {"cp", "--cp", "parallel.cp"}, {"ep", "--ep", "parallel.ep"}}};
  for (const auto& [column, flag, path] : kRanks) {
    if (count(cells, column) > 1) step.set(flag, path, std::to_string(count(cells, column)));
  }
  if (count(cells, "pp") > 1 && count(cells, "vpp") > 1) {
    step.set("--virtual-stages", "parallel.virtual_stages", std::to_string(count(cells, "vpp")));
  }
  if (cells.text("sp") == "yes" && count(cells, "tp") > 1) step.set("--sequence-parallel", "parallel.sequence_parallel", "true");
  if (!cells.has("n_gpus") && !cells.has("dp")) throw UntranslatedRow{"the number of GPUs is unknown"};
  const std::int64_t group = count(cells, "tp") * count(cells, "pp") * count(cells, "cp");
  const std::int64_t gpus = cells.has("n_gpus") ? cells.whole("n_gpus", 1, kMostOfCell) : group * cells.whole("dp", 1, kMostOfCell);
  step.set("--gpus", "hardware.gpus", std::to_string(gpus));
}

void add_batch(PublishedStep& step, const RowCells& cells) {
  if (!cells.has("seq_len")) throw UntranslatedRow{"the sequence length is not stated"};
  if (!cells.has("micro_batch")) throw UntranslatedRow{"the micro-batch is not stated"};
  const auto set = [&](const char* flag, const char* path, std::int64_t value) { step.set(flag, path, std::to_string(value)); };
  set("--sequence", "training.sequence", cells.whole("seq_len", 1, kMostOfCell));
  set("--micro-batch", "training.micro_batch", cells.whole("micro_batch", 1, kMostOfCell));
  if (cells.has("global_batch")) return set("--global-batch", "training.global_batch", cells.whole("global_batch", 1, kMostOfCell));
  if (count(cells, "grad_accum") > 1) throw UntranslatedRow{"the global batch is not stated"};  // else the job's: micro-batch x dp
}

}  // namespace

void add_recomputed_layers(PublishedStep& step, const RowCells& cells, std::int64_t every) {
  const std::int64_t layers =
      cells.has("layers") ? cells.whole("layers", 1, 1 << 16) : catalog_model(std::string(cells.text("model"))).layers;
  for (std::int64_t layer = every - 1; layer < layers; layer += every) {
    step.set("--set", fmt::format("placement.layers[{}].*", layer), "recompute");
  }
}

void add_result_sizes(PublishedStep& step, const RowCells& cells) {
  step.id = std::string(cells.text("id"));
  for (const char* const column : {"dp", "vpp", "grad_accum", "gpus_per_node"}) count(cells, column);  // also where nothing reads it
  add_model(step, cells);
  add_machine(step, cells);
  add_layout(step, cells);
  add_batch(step, cells);
}

}  // namespace stepsim
