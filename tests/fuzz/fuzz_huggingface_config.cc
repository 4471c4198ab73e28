// Any bytes as a config.json: a spec that is valid, or one line of InputError. Anything else (a crash, another exception) is a finding.
#include <cstddef>
#include <cstdint>
#include <string>

#include "models/model_spec.h"
#include "sim/check.h"
#include "sim/input_error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const stepsim::ModelSpec spec = stepsim::parse_huggingface_config(text, "config.json");
    STEPSIM_CHECK(!stepsim::model_problem(spec).has_value());
    STEPSIM_CHECK(stepsim::parameter_count(spec, 1).total > 0);
  } catch (const stepsim::InputError& error) {
    STEPSIM_CHECK(std::string(error.what()).find('\n') == std::string::npos);
  }
  return 0;
}
