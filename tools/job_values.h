// Reads typed values out of job entries, notes each with its source, and refuses those out of range. Knows no meaning of a value.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/job.h"

namespace stepsim {

// A limit that a library states better itself.
inline constexpr std::int64_t kUnbounded = std::int64_t{1} << 62;

// Of a batch: as check_layout. Products of two of them and of ranks stay far below 2^63.
inline constexpr std::int64_t kMostSequences = 1 << 20;

// As JSON shows a value that is written so: true and false are switches, digits a number.
JobValue::Form form_of(const std::string& value);

class JobValues {
 public:
  explicit JobValues(const JobEntries& entries) : entries_(entries) {}

  bool given(const std::string& path) const { return entries_.values.count(path) > 0; }
  // The value as given or the default; both are noted. `reason` says why the default is what it is.
  std::string text(const std::string& path, const std::string& otherwise, const std::string& reason);
  std::int64_t whole(const std::string& path, std::int64_t otherwise, const std::string& reason, std::int64_t least, std::int64_t most);
  double real(const std::string& path, double otherwise, const std::string& reason);
  bool flag(const std::string& path);
  // The index of the value among `names`; those of `later` are refused as not built yet.
  std::size_t choice(const std::string& path, std::span<const std::string_view> names, std::span<const std::string_view> later,
                     std::size_t otherwise, const std::string& reason);
  // Must be given; `wanted` says what.
  std::string required(const std::string& path, const std::string& wanted);
  // As given; noted; for lists and rows.
  std::optional<std::string> optional_text(const std::string& path);
  std::optional<std::int64_t> optional_whole(const std::string& path);
  std::optional<bool> optional_flag(const std::string& path);

  // Notes a given value as it stands; the reader of its section has used it.
  void note_given(const std::string& path);
  void note(const std::string& path, const std::string& value, const std::string& source, JobValue::Form form);
  [[noreturn]] void fail(const std::string& path, const std::string& problem) const;
  const std::vector<JobValue>& values() const { return values_; }

 private:
  const JobEntries& entries_;
  std::vector<JobValue> values_;
};

}  // namespace stepsim
