// Jobs and files that several tests use.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/error_of.h"
#include "tools/job.h"

namespace stepsim {

// "--tp", "8" as the program makes it of its arguments.
inline FlagValue flag(const std::string& name, const std::string& value) {
  for (const JobFlag& known : job_flags()) {
    if (known.flag == name) return {name, std::string(known.path), value};
  }
  return parse_set(value);
}

// The main job of README.md, on two layers unless `layers` says otherwise.
inline JobInput main_job(const std::string& layers = "2", std::vector<FlagValue> more = {}) {
  JobInput input{"",
                 {flag("--model", "llama3-8b"), flag("--hardware", "h100-sxm-80gb"), flag("--tp", "8"), flag("--sequence-parallel", "true"),
                  flag("--sequence", "8192"), flag("--layers", layers)}};
  input.flags.insert(input.flags.end(), more.begin(), more.end());
  return input;
}

// Eight layers of Llama-3 8B on four stages, eight micro-batches.
inline JobInput pipeline_job(std::vector<FlagValue> more = {}) {
  std::vector<FlagValue> flags = {flag("--pp", "4"), flag("--global-batch", "8")};
  flags.insert(flags.end(), more.begin(), more.end());
  return main_job("8", flags);
}

inline std::string written(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

}  // namespace stepsim
