#include "sim/units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "sim/check.h"

namespace stepsim {

namespace {

__extension__ typedef unsigned __int128 Uint128;

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::int64_t kKibi = 1024, kMebi = 1024 * kKibi, kGibi = 1024 * kMebi, kTebi = 1024 * kGibi;
constexpr std::int64_t kKilo = 1000, kMega = 1000 * kKilo, kGiga = 1000 * kMega, kTera = 1000 * kGiga, kPeta = 1000 * kTera;
constexpr Unit kSizes[] = {{"B", 1},       {"kB", kKilo},  {"MB", kMega},  {"GB", kGiga}, {"TB", kTera},
                           {"KiB", kKibi}, {"MiB", kMebi}, {"GiB", kGibi}, {"TiB", kTebi}};
constexpr Unit kTimes[] = {{"ps", 1}, {"ns", kKilo}, {"us", kMega}, {"ms", kGiga}, {"s", kTera}};
constexpr Unit kByteRates[] = {{"B/s", 8},           {"kB/s", 8 * kKilo},  {"MB/s", 8 * kMega},  {"GB/s", 8 * kGiga},
                               {"TB/s", 8 * kTera},  {"KiB/s", 8 * kKibi}, {"MiB/s", 8 * kMebi}, {"GiB/s", 8 * kGibi},
                               {"TiB/s", 8 * kTebi}, {"Mb/s", kMega},      {"Gb/s", kGiga},      {"Tb/s", kTera}};  // in bits
constexpr Unit kFlopRates[] = {{"GFLOP/s", kGiga}, {"TFLOP/s", kTera}, {"PFLOP/s", kPeta}};

// How a unit of a table is called in an error: all of them.
[[noreturn]] void fail(std::string_view text, std::string_view what, std::span<const Unit> units) {
  std::string names;
  for (const Unit& unit : units) names += fmt::format("{}{}", names.empty() ? "" : ", ", unit.name);
  throw QuantityError(fmt::format("found \"{}\", wanted {} (a number and one of {})", text, what, names));
}

// digits * 10^exponent. Digits beyond 25 are dropped behind the point: they cannot move the nearest integer of anything that fits.
struct Decimal {
  Uint128 digits = 0;
  int exponent = 0;
};
constexpr int kMostDigits = 25;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes "12.5", "1e3" from the front of the text; none if there is no number or it is absurdly large.
std::optional<Decimal> take_decimal(std::string_view& text) {
  Decimal number;
  int significant = 0;
  bool any = false, behind_point = false;
  std::size_t i = 0;
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !behind_point)); ++i) {
    if (text[i] == '.') {
      behind_point = true;
      continue;
    }
    any = true;
    if (significant == kMostDigits) {
      if (!behind_point) return std::nullopt;
      continue;
    }
    number.digits = number.digits * 10 + static_cast<unsigned>(text[i] - '0');
    if (number.digits > 0) ++significant;
    if (behind_point) --number.exponent;
  }
  if (!any) return std::nullopt;
  const bool has_exponent =
      i + 1 < text.size() && (text[i] == 'e' || text[i] == 'E') && (is_digit(text[i + 1]) || text[i + 1] == '-' || text[i + 1] == '+');
  if (has_exponent) {
    const std::size_t begin = i + (text[i + 1] == '+' ? 2 : 1);
    int exponent = 0;
    const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), exponent);
    if (error != std::errc() || exponent > 1000 || exponent < -1000) return std::nullopt;
    number.exponent += exponent;
    i = static_cast<std::size_t>(end - text.data());
  }
  text.remove_prefix(i);
  return number;
}

const Unit* unit_named(std::string_view name, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

struct Parsed {
  Decimal number{};
  Unit unit{};
};

Parsed parse(std::string_view text, std::string_view what, std::span<const Unit> units) {
  std::string_view rest = text;
  const std::optional<Decimal> number = take_decimal(rest);
  if (!number) fail(text, what, units);
  if (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  const Unit* unit = unit_named(rest, units);
  if (unit == nullptr) fail(text, what, units);
  return {*number, *unit};
}

// Nearest integer, halves up; none above int64.
std::optional<std::int64_t> rounded(const Parsed& parsed) {
  constexpr Uint128 kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  Uint128 scaled = parsed.number.digits * static_cast<std::uint64_t>(parsed.unit.factor);  // below 10^25 * 2^40 < 2^124
  for (int i = 0; i < parsed.number.exponent && scaled > 0; ++i) {
    scaled *= 10;
    if (scaled > kLargest) return std::nullopt;
  }
  Uint128 power = 1;
  for (int i = 0; i < -parsed.number.exponent; ++i) {
    if (power > scaled) return 0;  // below a tenth; also keeps the power below 2^128
    power *= 10;
  }
  const Uint128 nearest = scaled / power + (scaled % power >= power - power / 2 ? 1 : 0);
  if (nearest > kLargest) return std::nullopt;
  return static_cast<std::int64_t>(nearest);
}

// Whether bytes were asked for in parts: "0.3 B", or what is none of a byte, "0.0001 KiB". "79.1 GiB" is rounded.
bool splits_a_byte(const Parsed& parsed, std::int64_t nearest) {
  if (parsed.unit.factor > 1) return nearest == 0 && parsed.number.digits > 0;
  Uint128 digits = parsed.number.digits;
  for (int i = 0; i < -parsed.number.exponent && digits > 0; ++i) {
    if (digits % 10 != 0) return true;
    digits /= 10;
  }
  return false;
}

std::int64_t parse_integer(std::string_view text, std::string_view what, std::span<const Unit> units) {
  const std::optional<std::int64_t> value = rounded(parse(text, what, units));
  if (!value) fail(text, what, units);
  return *value;
}

// The double nearest to the number, times the unit.
double parse_rate(std::string_view text, std::string_view what, std::span<const Unit> units) {
  const Parsed parsed = parse(text, what, units);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const double rate = number * static_cast<double>(parsed.unit.factor);
  if (error != std::errc() || !std::isfinite(rate)) fail(text, what, units);
  return rate;
}

// "1.5", "12.35", "123.4", "1023": up to four significant digits, no zeros behind the last one.
std::string four_digits(double value) {
  const int behind_point = value < 9.9995 ? 3 : value < 99.995 ? 2 : value < 999.95 ? 1 : 0;
  std::string text = fmt::format("{:.{}f}", value, behind_point);
  if (behind_point > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

// In the largest of the units (ascending) in which the value, as printed, is at least 1.
std::string print(double value, std::span<const Unit> units) {
  if (value < 0) return fmt::format("-{}", print(-value, units));
  std::size_t best = 0;
  for (std::size_t i = 1; i < units.size(); ++i) {
    // 1023.6 MiB prints as 1 GiB rather than as 1024 MiB, and 999.96 us as 1 ms.
    const double step = static_cast<double>(units[i].factor) / static_cast<double>(units[i - 1].factor);
    const double below = value / static_cast<double>(units[i - 1].factor);
    if (below >= step - (step > 1000 ? 0.5 : 0.05)) best = i;
  }
  return fmt::format("{} {}", four_digits(value / static_cast<double>(units[best].factor)), units[best].name);
}

constexpr Unit kPrintedSizes[] = {{"B", 1}, {"KiB", kKibi}, {"MiB", kMebi}, {"GiB", kGibi}, {"TiB", kTebi}};
constexpr Unit kPrintedByteRates[] = {{"B/s", 1}, {"kB/s", kKilo}, {"MB/s", kMega}, {"GB/s", kGiga}, {"TB/s", kTera}};
constexpr Unit kPrintedFlopRates[] = {{"FLOP/s", 1},      {"kFLOP/s", kKilo}, {"MFLOP/s", kMega},
                                      {"GFLOP/s", kGiga}, {"TFLOP/s", kTera}, {"PFLOP/s", kPeta}};

}  // namespace

Bytes parse_bytes(std::string_view text) {
  const std::int64_t size = parse_integer(text, "a size", kSizes);
  if (splits_a_byte(parse(text, "a size", kSizes), size)) {
    throw QuantityError(fmt::format("found \"{}\", a fraction of a byte, wanted whole bytes", text));
  }
  return Bytes(size);
}

Duration parse_duration(std::string_view text) { return Duration(parse_integer(text, "a time", kTimes)); }
BytesPerSecond parse_bytes_per_second(std::string_view text) { return BytesPerSecond(parse_rate(text, "a rate", kByteRates) / 8); }
FlopsPerSecond parse_flops_per_second(std::string_view text) { return FlopsPerSecond(parse_rate(text, "a FLOP rate", kFlopRates)); }

std::string print_bytes(Bytes bytes) { return print(static_cast<double>(bytes.value), kPrintedSizes); }
std::string print_duration(Duration duration) { return print(static_cast<double>(duration.count()), kTimes); }
std::string print_bytes_per_second(BytesPerSecond rate) { return print(rate.value, kPrintedByteRates); }
std::string print_flops_per_second(FlopsPerSecond rate) { return print(rate.value, kPrintedFlopRates); }

Duration duration_from_seconds(double s) {
  STEPSIM_CHECK(s >= 0);  // also false for NaN
  const double picoseconds = s * 1e12;
  STEPSIM_CHECK(picoseconds < 0x1p63);
  const double below = std::floor(picoseconds);
  const auto whole = static_cast<std::int64_t>(below);
  return Duration(picoseconds - below >= 0.5 ? whole + 1 : whole);
}

}  // namespace stepsim
