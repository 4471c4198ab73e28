// Fitted constants as lines of a machine file, and machine files with those lines in place of what they had. Knows no measurement.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hardware/machine_spec.h"

namespace stepsim {

// A block of a machine file, "gemm_tile { ... }", or some of its lines.
struct FittedBlock {
  std::string name;                // of the field
  std::string first{};             // line that tells it from others of the name: "  kernel: FLASH2"; "": there is one
  std::vector<std::string> lines;  // without the braces, each beginning with two blanks and its field
  bool whole = false;              // all that the block has; else its other lines stay
};

// Where constants are from, as the comment of their lines.
FittedBlock tile_block(const GemmTileFit& fit, const std::string& source);  // but the weight gradient
FittedBlock weight_gradient_block(double ratio, const std::string& source);
FittedBlock roofline_block(std::optional<Duration> fixed, double compute, double memory, const std::string& source);
FittedBlock fp32_block(double compute, const std::string& source);
// `fixed_source` is of the fixed part and the memory fraction; `sources`: what each rate has beside.
FittedBlock attention_block(const AttentionFit& fit, const std::string& source, const std::string& fixed_source,
                            const std::vector<std::string>& sources);
FittedBlock memory_block(MemoryKernel kernel, double fraction, const std::string& source);
FittedBlock memory_fixed_block(Duration fixed, const std::string& source);
FittedBlock collective_block(const char* field, const CollectiveFit& fit, const std::string& source);
FittedBlock record_block(const FitRecord& record);

// The names of machine.proto's kernels by number: "FLASH2".
std::string attention_kernel_name(std::int8_t kernel);

// Blocks of one name and first line made one, in the order in which they first come.
std::vector<FittedBlock> merged(const std::vector<FittedBlock>& blocks);

// `text` with the blocks in place of its own: a whole one replaced, lines of others by their fields; what it lacks stands before its usual
// cluster and assumptions. Its fit records are replaced as a list.
std::string with_blocks(const std::string& text, const std::vector<FittedBlock>& blocks, const std::vector<FitRecord>& records);

// Lines that differ by more than rounding: numbers by a thousandth or half of their last digit. In the order of `found`.
std::vector<std::string> text_differences(const std::string& wanted, const std::string& found);

}  // namespace stepsim
