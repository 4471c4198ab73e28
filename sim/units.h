// Simulated time, sizes, work and rates as types that do not mix, and their text forms ("900 GB/s", "80 GiB", "5 us").
// Time is int64 picoseconds (106 days), bytes are int64, FLOPs and rates are double (a 530B step is 1.25e19 FLOPs, above int64).
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace stepsim {

using Duration = std::chrono::duration<std::int64_t, std::pico>;
using TimePoint = Duration;  // since the start of the step

template <class Unit, class Rep>
struct Quantity {  // unlike units do not add, a bare number does not convert
  Rep value{};
  constexpr Quantity() = default;
  explicit constexpr Quantity(Rep v) : value(v) {}
  constexpr Quantity& operator+=(Quantity b) {
    value += b.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity b) {
    value -= b.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value + b.value); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value - b.value); }
  friend constexpr Quantity operator*(Quantity a, Rep k) { return Quantity(a.value * k); }
  friend constexpr auto operator<=>(const Quantity&, const Quantity&) = default;
};
using Bytes = Quantity<struct BytesUnit, std::int64_t>;
using Flops = Quantity<struct FlopsUnit, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondUnit, double>;
using BytesPerSecond = Quantity<struct BytesPerSecondUnit, double>;

template <class Tag>
struct Id {  // an index into one kind of table; an OpId is not a StorageId
  std::int32_t index = -1;
  constexpr bool valid() const { return index >= 0; }  // false: "none"
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};
using OpId = Id<struct OpTag>;
using StreamId = Id<struct StreamTag>;
using QueueId = Id<struct QueueTag>;
using DeviceId = Id<struct DeviceTag>;
using IssuerId = Id<struct IssuerTag>;
using StorageId = Id<struct StorageTag>;
using WorkId = Id<struct WorkTag>;
using ResourceId = Id<struct ResourceTag>;
using LabelId = Id<struct LabelTag>;

// Indices are kept in 32 bits, tables are indexed by std::size_t.
constexpr std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

constexpr double as_double(std::int64_t value) { return static_cast<double>(value); }

constexpr double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }
constexpr double gib(Bytes bytes) { return gib(bytes.value); }

// A quantity in text that cannot be read. what() is "found X, wanted Y" without a place: the loader that knows the place adds it.
class QuantityError : public std::exception {
 public:
  explicit QuantityError(std::string problem) : problem_(std::move(problem)) {}
  const char* what() const noexcept override { return problem_.c_str(); }

 private:
  std::string problem_;
};

// Decimal number, optional space, unit. Sizes: B kB MB GB TB (powers of 1000), KiB MiB GiB TiB. Times: ps ns us ms s. Rates: size "/s",
// also Gb/s (bits). FLOP rates: GFLOP/s TFLOP/s PFLOP/s. Rounded to the nearest integer for sizes and times (halves up). A missing or
// foreign unit, a negative or non-finite number, a fraction of a byte ("0.3 B"), trailing text and an overflow throw QuantityError.
Bytes parse_bytes(std::string_view text);
Duration parse_duration(std::string_view text);
BytesPerSecond parse_bytes_per_second(std::string_view text);
FlopsPerSecond parse_flops_per_second(std::string_view text);

// Shortest readable form: print_bytes -> "12.35 GiB"; print_duration -> "1.234 ms"; three or four significant digits, same on every
// machine.
std::string print_bytes(Bytes);
std::string print_duration(Duration);
std::string print_bytes_per_second(BytesPerSecond);
std::string print_flops_per_second(FlopsPerSecond);

constexpr double seconds(Duration d) { return static_cast<double>(d.count()) * 1e-12; }

// Nearest picosecond, halves up; the argument must be finite, not negative and below 106 days (STEPSIM_CHECK).
Duration duration_from_seconds(double s);

}  // namespace stepsim

template <class Tag>
struct std::hash<stepsim::Id<Tag>> {
  std::size_t operator()(stepsim::Id<Tag> id) const noexcept { return std::hash<std::int32_t>()(id.index); }
};
