#include "sim/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace stepsim {
namespace {

using ::testing::HasSubstr;

std::string problem(const char* text) {
  try {
    parse_bytes(text);
  } catch (const QuantityError& error) {
    return error.what();
  }
  return "";
}

TEST(Units, SizesAreExactIntegers) {
  EXPECT_EQ(parse_bytes("80 GiB").value, std::int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("80GB").value, 80'000'000'000);
  EXPECT_EQ(parse_bytes("0 B").value, 0);
  EXPECT_EQ(parse_bytes("0.5 KiB").value, 512);
  EXPECT_EQ(parse_bytes("1.5kB").value, 1500);
  EXPECT_EQ(parse_bytes("2e3 MB").value, 2'000'000'000);
  EXPECT_EQ(parse_bytes("9007199254740993 B").value, 9007199254740993);  // 2^53 + 1: not a double
  EXPECT_EQ(parse_bytes("9223372036854775807 B").value, std::numeric_limits<std::int64_t>::max());
}

// "0.3 B" was 0 B, which as bucket_size means one bucket: a size that says parts of a byte, or less than half of one, is a mistake.
TEST(Units, FractionsOfAByteAreErrors) {
  for (const char* const text : {"0.3 B", "2.5 B", "1e-30 B", "0.0001 KiB", "1.00000001 B"}) {
    EXPECT_THROW(parse_bytes(text), QuantityError) << text;
  }
  EXPECT_EQ(parse_bytes("0 B").value, 0);
  EXPECT_EQ(parse_bytes("0.0 GiB").value, 0);
  EXPECT_EQ(parse_bytes("2.0 B").value, 2);
  EXPECT_EQ(parse_bytes("25e-1 kB").value, 2500);
}

TEST(Units, NearestIntegerHalvesUp) {
  EXPECT_EQ(parse_bytes("0.0025 kB").value, 3);
  EXPECT_EQ(parse_bytes("0.0024999999 kB").value, 2);
  EXPECT_EQ(parse_duration("0.49 ps").count(), 0);
  EXPECT_EQ(parse_duration("1e-30 s").count(), 0);
  EXPECT_EQ(parse_duration("0.0005 ns").count(), 1);  // half a picosecond
  EXPECT_EQ(parse_duration("1.0004999 ns").count(), 1000);
}

TEST(Units, Times) {
  EXPECT_EQ(parse_duration("5 us").count(), 5'000'000);
  EXPECT_EQ(parse_duration("1.234 ms").count(), 1'234'000'000);
  EXPECT_EQ(parse_duration("2 s").count(), 2'000'000'000'000);
  EXPECT_EQ(parse_duration("17ps").count(), 17);
}

TEST(Units, Rates) {
  EXPECT_EQ(parse_bytes_per_second("900 GB/s").value, 900e9);
  EXPECT_EQ(parse_bytes_per_second("400 Gb/s").value, 50e9);  // eight bits a byte
  EXPECT_EQ(parse_bytes_per_second("1 GiB/s").value, 1073741824.0);
  EXPECT_EQ(parse_flops_per_second("989.4 TFLOP/s").value, 989.4 * 1e12);
  EXPECT_EQ(parse_flops_per_second("2.5 PFLOP/s").value, 2.5e15);
}

TEST(Units, WhatCannotBeReadIsRefusedWithTheUnits) {
  EXPECT_EQ(problem("80"), "found \"80\", wanted a size (a number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)");
  EXPECT_THAT(problem("80 gb"), HasSubstr("80 gb"));
  for (const char* text : {"", "GB", "-5 GB", "5 us", "5 GB x", "nan GB", "inf GB", "1e GB", "0x10 B", "1..2 B", "5  GB", " 5 GB",
                           "9223372036854775808 B", "1e30 B", "99999999999999999999999999999999999999 B", "8388608 TiB"}) {
    EXPECT_NE(problem(text), "") << text;
  }
  EXPECT_THROW(parse_duration("5 GB"), QuantityError);
  EXPECT_THROW(parse_bytes_per_second("5 GB"), QuantityError);
  EXPECT_THROW(parse_bytes_per_second("1e400 GB/s"), QuantityError);
  EXPECT_THROW(parse_flops_per_second("5 TFLOPS"), QuantityError);
}

TEST(Units, PrintsThreeOrFourDigits) {
  EXPECT_EQ(print_bytes(Bytes(std::int64_t{80} << 30)), "80 GiB");
  EXPECT_EQ(print_bytes(Bytes(13260711526)), "12.35 GiB");  // 12.35 * 2^30
  EXPECT_EQ(print_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(print_bytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(print_bytes(Bytes((1 << 20) - 1)), "1 MiB");  // not 1024 KiB
  EXPECT_EQ(print_bytes(Bytes(-2048)), "-2 KiB");
  EXPECT_EQ(print_duration(Duration(1'234'000'000)), "1.234 ms");
  EXPECT_EQ(print_duration(Duration(999'960'000)), "1 ms");
  EXPECT_EQ(print_duration(Duration(999'900'000)), "999.9 us");
  EXPECT_EQ(print_duration(Duration(76'543'000'000'000)), "76.54 s");
  EXPECT_EQ(print_bytes_per_second(BytesPerSecond(900e9)), "900 GB/s");
  EXPECT_EQ(print_flops_per_second(FlopsPerSecond(989.4e12)), "989.4 TFLOP/s");
}

TEST(Units, SecondsRoundToPicoseconds) {
  EXPECT_EQ(duration_from_seconds(1.5e-12).count(), 2);
  EXPECT_EQ(duration_from_seconds(0.49e-12).count(), 0);
  EXPECT_EQ(duration_from_seconds(0).count(), 0);
  EXPECT_EQ(duration_from_seconds(1).count(), 1'000'000'000'000);
  EXPECT_THROW(duration_from_seconds(-1e-12), std::logic_error);
  EXPECT_THROW(duration_from_seconds(1e7), std::logic_error);  // 115 days
  EXPECT_THROW(duration_from_seconds(std::numeric_limits<double>::quiet_NaN()), std::logic_error);
}

}  // namespace
}  // namespace stepsim
