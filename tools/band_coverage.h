// How many measured steps lie within their bands, and how wide these are, by class. Knows no step.
#pragma once

#include <map>
#include <span>
#include <string>

namespace stepsim {

struct BandedRow {
  std::string of;                                            // class
  double simulated = 0, lower = 0, upper = 0, measured = 0;  // lower <= simulated <= upper, above 0
};

struct BandCoverage {
  std::size_t rows = 0, below = 0, above = 0;  // measured under its band, over it
  double half_width = 0;                       // median of (upper - lower) / 2 over what is simulated
  double inside() const { return 1 - static_cast<double>(below + above) / static_cast<double>(rows); }
};

// By class; "all" too where there are several.
std::map<std::string, BandCoverage> band_coverage(std::span<const BandedRow> rows);

// A line a class: rows, share inside, below, above, median half width.
std::string band_coverage_text(const std::map<std::string, BandCoverage>& coverage);

}  // namespace stepsim
