// The flags that describe a job, as a table: each sets one field of a job file. Knows no value's meaning.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepsim {

struct JobFlag {
  std::string_view flag;   // "--tp"
  std::string_view path;   // the field of tools/job.proto that it sets: "parallel.tp"
  std::string_view value;  // what the help shows for its value; "" for a switch
  std::string_view help;   // "" hides it: accepted because its only value is harmless
};

std::span<const JobFlag> job_flags();

// "--tp" for "parallel.tp"; the path itself if no flag sets it.
std::string flag_of_path(std::string_view path);

// Flags and commands of the contract that are not built yet: they end with exit code 2 and say so.
std::span<const std::string_view> later_flags();
std::span<const std::string_view> later_commands();

// One flag as given. --set has the path that stands in its value.
struct FlagValue {
  std::string flag, path, value;
};

// "--set a.b=c" as a flag value. InputError without '='.
FlagValue parse_set(const std::string& text);

}  // namespace stepsim
