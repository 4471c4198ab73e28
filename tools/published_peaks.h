// The part of published/results.csv that is about memory. Knows no kernel and no step time.
#pragma once

#include "tools/published_format.h"

namespace stepsim {

// Rows of quality A and B with a peak. Others are filtered; what the model cannot express is skipped with the reason.
PublishedComparison compare_peaks(const CsvTable& table);

}  // namespace stepsim
