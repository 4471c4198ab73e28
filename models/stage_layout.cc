#include "models/stage_layout.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::int64_t StageLayout::layers_of(std::int32_t stage) const {
  std::int64_t layers = 0;
  for (std::int32_t index = 0; index < chunks; ++index) layers += chunk(stage, index).layers;
  return layers;
}

bool StageLayout::has_embedding(std::int32_t stage) const {
  bool found = false;
  for (std::int32_t index = 0; index < chunks; ++index) found = found || chunk(stage, index).embedding;
  return found;
}

bool StageLayout::has_head(std::int32_t stage) const {
  bool found = false;
  for (std::int32_t index = 0; index < chunks; ++index) found = found || chunk(stage, index).head;
  return found;
}

namespace {

// Stages x chunks; check_layout() allows as many ranks.
constexpr std::int64_t kMostParts = 1 << 20;
// Parentheses in one another: what they hold is copied once a level.
constexpr std::size_t kDeepest = 16;

// What stands between two bars, in order except that E and L are counted: where they may stand is checked on the whole.
struct ChunkText {
  std::int64_t embeddings = 0, layers = 0, heads = 0;
};

// Reads Megatron-LM's layout strings (core/transformer/pipeline_parallel_layer_layout.py), whose repeats it multiplies out only as far as
// the model goes.
class LayoutReader {
 public:
  LayoutReader(const std::string& text, std::int64_t layers, std::int64_t parts) : text_(text), layers_(layers), parts_(parts) {}
  std::vector<ChunkText> chunks();

 private:
  using Sequence = std::vector<ChunkText>;  // at least one, as bars separate
  [[noreturn]] void refuse_at(std::size_t place, const std::string& found, const std::string& wanted) const;
  std::string shown(std::size_t place) const;
  Sequence symbol(char) const;
  std::optional<std::int64_t> repeat();  // "*N" at the place, none without a star
  Sequence repeated(const Sequence& one, std::int64_t count, std::size_t place) const;
  void append(Sequence& to, const Sequence& more, std::size_t place) const;
  void check_ends(const Sequence& all) const;

  const std::string& text_;
  const std::int64_t layers_, parts_;
  std::size_t at_ = 0;
};

void LayoutReader::refuse_at(std::size_t place, const std::string& found, const std::string& wanted) const {
  refuse("--pp-layout", found + " at column " + std::to_string(place + 1), wanted);
}

std::string LayoutReader::shown(std::size_t place) const {
  if (place >= text_.size()) return "the end";
  const auto byte = static_cast<unsigned char>(text_[place]);
  return byte >= 0x20 && byte < 0x7F ? std::string("\"") + text_[place] + "\"" : "byte " + std::to_string(byte);
}

LayoutReader::Sequence LayoutReader::symbol(char letter) const {
  switch (letter) {
    case 'E':
      return {{.embeddings = 1}};
    case 't':
      return {{.layers = 1}};
    case 'L':
      return {{.heads = 1}};
    case '|':
      return {{}, {}};
    case 'm':
      refuse_at(at_, "\"m\"", "a model without multi-token prediction, which is not built yet");
    default:
      refuse_at(at_, shown(at_), "E (embedding), t (layer), L (head and loss), |, or (...)*N");
  }
}

std::optional<std::int64_t> LayoutReader::repeat() {
  if (at_ >= text_.size() || text_[at_] != '*') return std::nullopt;
  ++at_;
  std::int64_t count = 0;
  const char* const end = text_.data() + text_.size();
  const auto [stop, error] = std::from_chars(text_.data() + at_, end, count);
  const auto length = static_cast<std::size_t>(stop - (text_.data() + at_));
  if (error == std::errc::result_out_of_range) count = std::numeric_limits<std::int64_t>::max();
  if (error == std::errc::invalid_argument || count < 1) refuse_at(at_, shown(at_), "how often to repeat, 1 or more");
  at_ += length;
  return count;
}

// Adds `more` behind: its first chunk goes on where the last one of `to` ends.
void LayoutReader::append(Sequence& to, const Sequence& more, std::size_t place) const {
  const auto add = [&](std::int64_t& sum, std::int64_t value, std::int64_t most, const char* what) {
    if (value > most - sum) refuse_at(place, std::string("more than ") + std::to_string(most) + what, "as many as there are");
    sum += value;
  };
  add(to.back().layers, more.front().layers, layers_, " layers");
  add(to.back().embeddings, more.front().embeddings, 1, " E");
  add(to.back().heads, more.front().heads, 1, " L");
  if (static_cast<std::int64_t>(to.size() + more.size()) - 1 > parts_) {
    refuse_at(place, "more than " + std::to_string(parts_) + " chunks", "stages x virtual stages, " + std::to_string(parts_));
  }
  to.insert(to.end(), more.begin() + 1, more.end());
}

LayoutReader::Sequence LayoutReader::repeated(const Sequence& one, std::int64_t count, std::size_t place) const {
  Sequence all = one;
  if (one.size() > 1) {  // stops at the number of chunks
    for (std::int64_t i = 1; i < count; ++i) append(all, one, place);
    return all;
  }
  const auto times = [count](std::int64_t value) {
    const std::int64_t most = std::numeric_limits<std::int64_t>::max();
    return value > 0 && count > most / value ? most : value * count;
  };
  Sequence empty(1);
  append(empty, {{times(one[0].embeddings), times(one[0].layers), times(one[0].heads)}}, place);
  return empty;
}

std::vector<ChunkText> LayoutReader::chunks() {
  std::vector<Sequence> open(1, Sequence(1));  // what stands in the parentheses around the place, outermost first
  std::vector<std::size_t> places;             // of those parentheses
  for (std::size_t place = 0; (place = at_) < text_.size();) {
    const char letter = text_[at_];
    if (letter == ',') {  // cosmetic
      ++at_;
    } else if (letter == '(') {
      ++at_;
      if (places.size() == kDeepest) refuse_at(place, "more than " + std::to_string(kDeepest) + " nested (", "fewer");
      places.push_back(place);
      open.emplace_back(1);
    } else if (letter == ')') {
      if (places.empty()) refuse_at(place, "\")\"", "a ( before it");
      ++at_;
      const std::optional<std::int64_t> count = repeat();
      if (!count) refuse_at(at_, shown(at_), "*N behind )");
      const Sequence inside = std::move(open.back());
      open.pop_back();
      append(open.back(), repeated(inside, *count, place), places.back());
      places.pop_back();
    } else {
      const Sequence one = symbol(letter);
      ++at_;
      append(open.back(), repeated(one, repeat().value_or(1), place), place);
    }
  }
  if (!places.empty()) refuse_at(places.back(), "\"(\"", "a ) behind it");
  check_ends(open[0]);
  return std::move(open[0]);
}

// E stands first and L last of all that is expanded when they stand so in the text, as each occurs once.
void LayoutReader::check_ends(const Sequence& all) const {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  ChunkText sum;
  for (const ChunkText& chunk : all) {
    sum.embeddings += chunk.embeddings;
    sum.layers = chunk.layers > kMost - sum.layers ? kMost : sum.layers + chunk.layers;
    sum.heads += chunk.heads;
  }
  const std::size_t first = text_.find_first_not_of(",("), last = text_.find_last_not_of(",)*0123456789");
  if (first == std::string::npos || text_[first] != 'E')
    refuse_at(first == std::string::npos ? 0 : first, shown(first), "E (the embedding) first");
  if (text_[last] != 'L') refuse_at(last, shown(last), "L (head and loss) last");
  if (sum.embeddings != 1) refuse("--pp-layout", std::to_string(sum.embeddings) + " E", "one");
  if (sum.heads != 1) refuse("--pp-layout", std::to_string(sum.heads) + " L", "one");
  if (sum.layers != layers_)
    refuse("--pp-layout", std::to_string(sum.layers) + " layers", "the " + std::to_string(layers_) + " of the model");
  if (static_cast<std::int64_t>(all.size()) != parts_) {
    refuse("--pp-layout", std::to_string(all.size()) + " chunks", "stages x virtual stages, " + std::to_string(parts_));
  }
}

// Of a stage that has no layers of its own given: what is left, shared evenly.
std::int64_t even_share(std::int64_t layers, std::int32_t stages, const StageSplit& split) {
  for (const auto& [given, flag] : {std::pair(split.first_stage_layers, "--set parallel.first_stage_layers"),
                                    std::pair(split.last_stage_layers, "--set parallel.last_stage_layers")}) {
    if (given != 0 && stages == 1) refuse(flag, std::to_string(given) + " with --pp 1", "--pp 2 or more, whose stages share the layers");
  }
  std::int64_t left = layers, sharing = stages;
  const auto take = [&](std::int64_t given, const char* flag) {
    if (given == 0) return;
    if (given < 0 || given > left) refuse(flag, std::to_string(given), "1 to the " + std::to_string(left) + " layers left");
    left -= given;
    --sharing;
  };
  take(split.first_stage_layers, "--set parallel.first_stage_layers");
  take(split.last_stage_layers, "--set parallel.last_stage_layers");
  if (sharing == 0 ? left == 0 : left >= sharing && left % sharing == 0) return sharing == 0 ? 0 : left / sharing;
  const std::string wanted = sharing == 0
                                 ? "all layers in the first and last stage"
                                 : "a divisor of " + std::to_string(left) + " layers for the stages that share them, or --pp-layout";
  refuse("--pp", std::to_string(stages) + " stages with " + std::to_string(left) + " layers left for " + std::to_string(sharing), wanted);
}

std::vector<std::int64_t> layers_of_stages(std::int64_t layers, std::int32_t stages, std::int32_t chunks, const StageSplit& split,
                                           PipelineKind kind) {
  const bool even = split.first_stage_layers == 0 && split.last_stage_layers == 0;
  const std::string of_model = std::to_string(layers) + " layers";
  if (layers < stages || (even && layers % stages != 0)) {
    refuse("--pp", std::to_string(stages), "a divisor of " + of_model + " (or --pp-layout)");
  }
  std::vector<std::int64_t> of(static_cast<std::size_t>(stages), even_share(layers, stages, split));
  if (split.first_stage_layers != 0) of.front() = split.first_stage_layers;
  if (split.last_stage_layers != 0) of.back() = split.last_stage_layers;
  for (const std::int64_t each : of) {
    if (each >= chunks && each % chunks == 0) continue;
    if (goes_both_ways(kind)) {
      refuse("--schedule", std::string(pipeline_name(kind)) + " with " + std::to_string(each) + " layers in a stage",
             "a multiple of its two model chunks (or --pp-layout)");
    } else {
      refuse("--virtual-stages", std::to_string(chunks),
             "a divisor of the " + std::to_string(each) + " layers of a stage (or --pp-layout)");
    }
  }
  return of;
}

}  // namespace

StageLayout stage_layout(std::int64_t layers, std::int32_t stages, std::int32_t chunks, const StageSplit& split, PipelineKind kind) {
  STEPSIM_CHECK(layers >= 1);
  STEPSIM_CHECK(stages >= 1);
  STEPSIM_CHECK(chunks >= 1);
  if (stages > kMostParts) refuse("--pp", std::to_string(stages), "at most " + std::to_string(kMostParts));
  if (std::int64_t{stages} * chunks > kMostParts) {
    refuse("--virtual-stages", std::to_string(chunks),
           "at most " + std::to_string(kMostParts) + " chunks in " + std::to_string(stages) + " stages");
  }
  const ChunkPlacement placement{kind, stages, chunks};
  const auto parts = static_cast<std::size_t>(placement.parts());
  StageLayout made{.stages = stages, .chunks = chunks, .parts = std::vector<ModelChunk>(parts), .schedule = kind};
  std::vector<std::int64_t> part_layers(parts);
  if (split.layout.empty()) {
    const std::int32_t share = chunks / placement.copies();  // parts of a stage
    const std::vector<std::int64_t> of_stage = layers_of_stages(layers, stages, share, split, kind);
    for (std::int32_t chunk = 0; chunk < share; ++chunk) {
      for (std::int32_t stage = 0; stage < stages; ++stage) {
        part_layers[static_cast<std::size_t>(placement.part({stage, chunk}))] = of_stage[static_cast<std::size_t>(stage)] / share;
      }
    }
  } else {
    if (split.first_stage_layers != 0) refuse("--set parallel.first_stage_layers", "it with --pp-layout", "one of the two");
    if (split.last_stage_layers != 0) refuse("--set parallel.last_stage_layers", "it with --pp-layout", "one of the two");
    const std::vector<ChunkText> chunk_texts = LayoutReader(split.layout, layers, placement.parts()).chunks();
    std::transform(chunk_texts.begin(), chunk_texts.end(), part_layers.begin(), [](const ChunkText& each) { return each.layers; });
  }
  std::int64_t first = 0;
  for (std::size_t i = 0; i < made.parts.size(); ++i) {
    made.parts[i].first_layer = first;
    made.parts[i].layers = part_layers[i];
    first += part_layers[i];
  }
  made.parts.front().embedding = true;
  made.parts.back().head = true;
  STEPSIM_CHECK(first == layers);
  return made;
}

}  // namespace stepsim
