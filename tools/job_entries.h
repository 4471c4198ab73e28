// What the user said about a job, by field path, with the place where it was said: a job file, a placement file, flags and --set merged.
// Knows only that the values have the right type.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/input_error.h"
#include "tools/job_flags.h"

namespace stepsim {

struct JobInput {
  std::string file;                // "": flags only
  std::vector<FlagValue> flags{};  // in order; a later one wins
};

struct JobEntry {
  std::string value;
  SourceLocation where{};  // a place in a file, or the flag with line 0
};

struct JobEntries {
  std::map<std::string, JobEntry> values{};  // by path: "parallel.tp", "placement.rows[0].action"
  std::vector<std::string> files{};          // that were read
  // --set of fields that the machine's and the cluster's own files have: ("peak.bf16", "1200 TFLOP/s"), in order.
  std::vector<std::pair<std::string, std::string>> machine{}, cluster{};
};

// For an error about the value: its place, for --set with the path as it was typed.
SourceLocation place_of(const std::string& path, const JobEntry& entry);

// Flags stand above the job file, --set above both. InputError with the place of unknown fields and wrong types.
JobEntries job_entries(const JobInput& input);

}  // namespace stepsim
