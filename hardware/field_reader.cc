#include "hardware/field_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

void FieldReader::fail(const std::string& path, const std::string& problem) const {
  if (std::find(overridden_.begin(), overridden_.end(), path) != overridden_.end()) throw InputError({"--set " + path}, problem);
  // "found 3, ..." -> "found sms 3, ...", "found none, ..." -> "found no sms, ...": the place alone does not say which field.
  constexpr std::string_view kFound = "found ", kNone = "none,";
  STEPSIM_CHECK(problem.compare(0, kFound.size(), kFound) == 0);
  const std::string what = problem.substr(kFound.size());
  const bool none = what.compare(0, kNone.size(), kNone) == 0;
  throw InputError(locate_field(text_, file_, path),
                   none ? fmt::format("found no {}{}", path, what.substr(kNone.size() - 1)) : fmt::format("found {} {}", path, what));
}

template <class Parse>
auto FieldReader::quantity(const std::string& path, const std::optional<std::string>& value, const char* example, Parse parse) const {
  if (!value) fail(path, fmt::format("found none, wanted a quantity such as \"{}\"", example));
  try {
    return parse(*value);
  } catch (const QuantityError& error) {
    fail(path, fmt::format("{}, such as \"{}\"", error.what(), example));
  }
}

BytesPerSecond FieldReader::rate(const std::string& path, const std::optional<std::string>& value) const {
  const BytesPerSecond rate = quantity(path, value, "900 GB/s", parse_bytes_per_second);
  if (!(rate.value > 0)) fail(path, fmt::format("found \"{}\", wanted more than zero", *value));
  return rate;
}

FlopsPerSecond FieldReader::flops(const std::string& path, const std::optional<std::string>& value) const {
  const FlopsPerSecond rate = quantity(path, value, "989 TFLOP/s", parse_flops_per_second);
  if (!(rate.value > 0)) fail(path, fmt::format("found \"{}\", wanted more than zero", *value));
  return rate;
}

Bytes FieldReader::bytes(const std::string& path, const std::optional<std::string>& value) const {
  const Bytes bytes = quantity(path, value, "80 GiB", parse_bytes);
  if (bytes.value <= 0) fail(path, fmt::format("found \"{}\", wanted more than zero", *value));
  return bytes;
}

Duration FieldReader::duration(const std::string& path, const std::optional<std::string>& value) const {
  const Duration duration = quantity(path, value, "5 us", parse_duration);
  if (duration >= std::chrono::seconds(1)) fail(path, fmt::format("found \"{}\", wanted less than a second", *value));
  return duration;
}

double FieldReader::number(const std::string& path, std::optional<double> value, double above, double at_most) const {
  if (!value) fail(path, fmt::format("found none, wanted a number above {} and at most {}", above, at_most));
  if (!(*value > above && *value <= at_most)) {
    fail(path, fmt::format("found {}, wanted a number above {} and at most {}", *value, above, at_most));
  }
  return *value;
}

std::int32_t FieldReader::count(const std::string& path, std::optional<std::int32_t> value) const {
  if (!value) fail(path, "found none, wanted a whole number above zero");
  if (*value < 1) fail(path, fmt::format("found {}, wanted a whole number above zero", *value));
  return *value;
}

}  // namespace stepsim
