// Presets as the catalog writes them: bases resolved, and who says each field. framework_preset.h is what steps are built from.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/framework_preset.h"
#include "schema/embedded_files.h"

namespace stepsim {

struct FrameworkField {
  std::string name, value;  // as framework.proto has them: "fused_norm", "true"
  std::string said_by;      // "megatron-core@2026"; "" for an override
};

struct DescribedFramework {
  FrameworkPreset preset;
  std::vector<FrameworkField> fields;  // all, in the order of framework.proto
};

// Values of fields by name: ("fused_norm", "false"). They stand above the preset's own; a `stored` list replaces the preset's.
using FrameworkOverrides = std::span<const std::pair<std::string, std::string>>;

// As load_framework(). InputError "--set framework.FIELD: ..." for values out of range, "--set FIELD: ..." for unknown fields and values of
// another type.
DescribedFramework describe_framework(const std::string& name_at_version, FrameworkOverrides overrides = {});

// The same for the text of a file whose bases are in `catalog`.
DescribedFramework describe_framework_text(std::span<const EmbeddedFile> catalog, const std::string& text, const std::string& file,
                                           FrameworkOverrides overrides = {});

}  // namespace stepsim
