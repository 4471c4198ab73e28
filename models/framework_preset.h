// What a training framework does with a layer, as data with a version: kernel set, what is saved, fused or eager, dtypes, overlap.
// models/data/frameworks/*.textproto; `name@version`. A switch exists only where two real frameworks differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/op_work.h"

namespace stepsim {

struct FrameworkPreset {
  std::string name, version, source;
  // What is saved
  bool saves_norm_statistics = false;    // rstd (and mean), fp32 per token: real kernels do, the 2205.05198 accounting does not
  bool saves_softmax_statistics = true;  // flash attention's log-sum-exp, fp32 per head and query
  bool saves_dropout_masks = true;       // 1 byte per element (hidden dropout); false: regenerated from the seed
  bool shares_attention_output = true;   // attention's saved output and the projection's saved input are one storage
  // Kernels
  bool fused_softmax = true;  // scale+mask+softmax in one kernel
  bool fused_bias_activation = true;
  bool fused_bias_dropout_add = true;
  bool fused_rotary = true;
  bool fused_gate_up = true;       // one GEMM for gate and up
  std::int32_t flash_version = 2;  // 2 or 3 (3 only where the machine has it)
  // Tensor parallelism
  bool backward_all_reduce_overlaps_weight_gradient = false;  // f-bar in backward runs beside dW on a communication stream
  bool sequence_parallel_gather_again = true;                 // norm output saved 1/t, gathered again in backward, overlapped with dX
  // Recompute
  bool stops_after_last_saved = false;  // a re-run ends with the last storage that backward reads
  // Dtypes and memory
  std::int32_t gradient_bits = 32;         // main gradient buffer, bits per parameter
  bool gradients_always_allocated = true;  // one contiguous buffer, zeroed and not freed
  std::int64_t vocab_multiple = 128;
  // Loss
  bool loss_in_place = true;  // fp32 copy of the logits worked on in place: 3 Lg, not 5 Lg
  bool logits_fp32 = true;
  // Host
  bool host_issue = true;  // launches cost host time
  // Workspace bytes that live all step (cuBLAS, ...), by compute capability class, are facts of the machine + library: see hardware.
};

// InputError for an unknown one (with the nearest). Without "@version": the newest version in the catalog.
FrameworkPreset load_framework(const std::string& name_at_version);
std::vector<std::string> framework_names();  // name@version, sorted

// Reads the text of a Framework message, models/framework.proto. `file` is named in errors; a missing field is one.
FrameworkPreset parse_framework(const std::string& text, const std::string& file);

}  // namespace stepsim
