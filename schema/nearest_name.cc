#include "schema/nearest_name.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace stepsim {

// Optimal string alignment distance: insert, delete, replace, swap of neighbours; case does not count.
static std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

// The shortest candidate that the name begins, "" if it is too short to say anything.
static std::string nearest_continuation(std::string_view name, std::span<const std::string> candidates) {
  constexpr std::size_t kTelling = 3;
  std::string best;
  if (name.size() < kTelling) return best;
  for (const std::string& candidate : candidates) {
    const bool begins = candidate.size() >= name.size() && edit_distance(name, std::string_view(candidate).substr(0, name.size())) == 0;
    if (begins && (best.empty() || candidate.size() < best.size())) best = candidate;
  }
  return best;
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  constexpr std::size_t kLongest = 200;  // nobody misspells a longer name
  if (name.empty() || name.size() > kLongest) return "";
  const std::string longer = nearest_continuation(name, candidates);
  if (!longer.empty()) return longer;
  std::string best;
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string suggestion(std::string_view name, std::span<const std::string> candidates) {
  const std::string best = nearest_name(name, candidates);
  return best.empty() ? "" : ", did you mean \"" + best + "\"?";
}

}  // namespace stepsim
