#include "models/stage_layout.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

std::vector<std::int64_t> part_layers(const StageLayout& layout) {
  std::vector<std::int64_t> layers;
  std::int64_t next = 0;
  for (const ModelChunk& part : layout.parts) {
    EXPECT_EQ(part.first_layer, next);
    next += part.layers;
    EXPECT_EQ(part.embedding, &part == &layout.parts.front());
    EXPECT_EQ(part.head, &part == &layout.parts.back());
    layers.push_back(part.layers);
  }
  return layers;
}

std::vector<std::int64_t> of_text(const std::string& text, std::int64_t layers, std::int32_t stages, std::int32_t chunks) {
  return part_layers(stage_layout(layers, stages, chunks, {.layout = text}));
}

std::string problem(std::int64_t layers, std::int32_t stages, std::int32_t chunks, const StageSplit& split = {}) {
  return error_of([&] { stage_layout(layers, stages, chunks, split); });
}
std::string problem_of_text(const std::string& text, std::int64_t layers = 4, std::int32_t stages = 2, std::int32_t chunks = 1) {
  return problem(layers, stages, chunks, {.layout = text});
}

TEST(StageLayout, SplitsEvenlyAndDealsChunksInTurn) {
  const StageLayout layout = stage_layout(24, 3, 2, {});
  EXPECT_EQ(part_layers(layout), (std::vector<std::int64_t>{4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(layout.chunk(1, 1), (ModelChunk{.first_layer = 16, .layers = 4}));  // part 1 * 3 + 1
  EXPECT_EQ(layout.layers_of(1), 8);
  EXPECT_EQ(part_layers(stage_layout(5, 1, 1, {})), (std::vector<std::int64_t>{5}));
}

TEST(StageLayout, FirstAndLastStagesMayHoldTheirOwnNumber) {
  // Llama 3 405B (2407.21783 section 3.3.2): 126 layers in 16 stages, one fewer in the first and the last: 7 + 14 * 8 + 7.
  const StageLayout llama = stage_layout(126, 16, 1, {.first_stage_layers = 7, .last_stage_layers = 7});
  EXPECT_EQ(llama.layers_of(0), 7);
  EXPECT_EQ(llama.layers_of(8), 8);
  EXPECT_EQ(llama.layers_of(15), 7);
  EXPECT_EQ(part_layers(stage_layout(10, 3, 1, {.first_stage_layers = 2})), (std::vector<std::int64_t>{2, 4, 4}));
  EXPECT_EQ(part_layers(stage_layout(10, 3, 2, {.last_stage_layers = 2})), (std::vector<std::int64_t>{2, 2, 1, 2, 2, 1}));
  EXPECT_EQ(part_layers(stage_layout(7, 2, 1, {.first_stage_layers = 3, .last_stage_layers = 4})), (std::vector<std::int64_t>{3, 4}));
}

TEST(StageLayout, ReadsMegatronsStrings) {
  EXPECT_EQ(of_text("Ett|ttL", 4, 2, 1), (std::vector<std::int64_t>{2, 2}));
  // The help text of --pipeline-model-parallel-layout without its m, 6 chunks: E | t | t | t | nothing | L.
  EXPECT_EQ(of_text("E|(t|)*3,|L", 3, 3, 2), (std::vector<std::int64_t>{0, 1, 1, 1, 0, 0}));
  // DeepSeek-V3 without its m: E and 3, 29 chunks of 2, nothing, L; 61 layers in 16 stages of 2 chunks.
  const std::vector<std::int64_t> deepseek = of_text("Et*3|(tt|)*29,|L", 61, 16, 2);
  ASSERT_EQ(deepseek.size(), 32u);
  EXPECT_EQ(deepseek[0], 3);
  EXPECT_EQ(deepseek[29], 2);
  EXPECT_EQ(deepseek[30], 0);
  EXPECT_EQ(deepseek[31], 0);
  // Repeats in repeats: (tt|t|) twice = 2,1,2,1, then L alone.
  EXPECT_EQ(of_text("E|((t*2|)*1(t|)*1)*2L", 6, 3, 2), (std::vector<std::int64_t>{0, 2, 1, 2, 1, 0}));
  EXPECT_EQ(of_text("E(tt)*3|t*4L", 10, 2, 1), (std::vector<std::int64_t>{6, 4}));
  EXPECT_EQ(of_text("Et|*3tL", 2, 2, 2), (std::vector<std::int64_t>{1, 0, 0, 1}));  // x*N with x = |
}

TEST(StageLayout, RefusesUnevenSplitsInTheFieldsWords) {
  EXPECT_EQ(problem(32, 3, 1), "--pp: found 3, wanted a divisor of 32 layers (or --pp-layout)");
  EXPECT_EQ(problem(4, 8, 1), "--pp: found 8, wanted a divisor of 4 layers (or --pp-layout)");
  EXPECT_EQ(problem(32, 4, 3), "--virtual-stages: found 3, wanted a divisor of the 8 layers of a stage (or --pp-layout)");
  EXPECT_EQ(problem(4, 2, 4), "--virtual-stages: found 4, wanted a divisor of the 2 layers of a stage (or --pp-layout)");
  EXPECT_EQ(problem(10, 2, 1, {.first_stage_layers = 11}), "--set parallel.first_stage_layers: found 11, wanted 1 to the 10 layers left");
  EXPECT_EQ(problem(10, 2, 1, {.last_stage_layers = -1}), "--set parallel.last_stage_layers: found -1, wanted 1 to the 10 layers left");
  EXPECT_EQ(problem(10, 4, 1, {.first_stage_layers = 2, .last_stage_layers = 3}),
            "--pp: found 4 stages with 5 layers left for 2, wanted a divisor of 5 layers for the stages that share them, or --pp-layout");
  EXPECT_EQ(problem(10, 2, 1, {.first_stage_layers = 2, .last_stage_layers = 3}),
            "--pp: found 2 stages with 5 layers left for 0, wanted all layers in the first and last stage");
  EXPECT_EQ(problem(10, 3, 1, {.first_stage_layers = 10}),
            "--pp: found 3 stages with 0 layers left for 2, wanted a divisor of 0 layers for the stages that share them, or --pp-layout");
  EXPECT_EQ(problem(10, 1, 1, {.first_stage_layers = 10, .last_stage_layers = 10}),
            "--set parallel.first_stage_layers: found 10 with --pp 1, wanted --pp 2 or more, whose stages share the layers");
  EXPECT_EQ(problem(10, 1, 1, {.last_stage_layers = 10}),
            "--set parallel.last_stage_layers: found 10 with --pp 1, wanted --pp 2 or more, whose stages share the layers");
  EXPECT_EQ(problem(4, 2, 1, {.layout = "Ett|ttL", .first_stage_layers = 2}),
            "--set parallel.first_stage_layers: found it with --pp-layout, wanted one of the two");
}

TEST(StageLayout, RefusesLayoutsThatAreNotOfTheModel) {
  EXPECT_EQ(problem_of_text("Ett|tL"), "--pp-layout: found 3 layers, wanted the 4 of the model");
  EXPECT_EQ(problem_of_text("Ett|tttL"), "--pp-layout: found 5 layers, wanted the 4 of the model");
  EXPECT_EQ(problem_of_text("E|tttttL"), "--pp-layout: found more than 4 layers at column 7, wanted as many as there are");
  EXPECT_EQ(problem_of_text("EttttL"), "--pp-layout: found 1 chunks, wanted stages x virtual stages, 2");
  EXPECT_EQ(problem_of_text("Et|t|ttL"), "--pp-layout: found more than 2 chunks at column 5, wanted stages x virtual stages, 2");
  EXPECT_EQ(problem_of_text("tt|ttL"), "--pp-layout: found \"t\" at column 1, wanted E (the embedding) first");
  EXPECT_EQ(problem_of_text("|EttttL"), "--pp-layout: found \"|\" at column 1, wanted E (the embedding) first");
  EXPECT_EQ(problem_of_text("Ett|tt"), "--pp-layout: found \"t\" at column 6, wanted L (head and loss) last");
  EXPECT_EQ(problem_of_text("EttttL|"), "--pp-layout: found \"|\" at column 7, wanted L (head and loss) last");
  EXPECT_EQ(problem_of_text("EttE|ttL"), "--pp-layout: found more than 1 E at column 4, wanted as many as there are");
  EXPECT_EQ(problem_of_text("Ett|EttL"), "--pp-layout: found 2 E, wanted one");
  EXPECT_EQ(problem_of_text("EttL|ttL"), "--pp-layout: found 2 L, wanted one");
  EXPECT_EQ(problem_of_text(","), "--pp-layout: found the end at column 1, wanted E (the embedding) first");
}

TEST(StageLayout, RefusesWhatIsNoLayoutWithItsColumn) {
  const std::string letters = ", wanted E (embedding), t (layer), L (head and loss), |, or (...)*N";
  EXPECT_EQ(problem_of_text("Etx|tL"), "--pp-layout: found \"x\" at column 3" + letters);
  EXPECT_EQ(problem_of_text("Et4|tL"), "--pp-layout: found \"4\" at column 3" + letters);
  EXPECT_EQ(problem_of_text("Et\n|tL"), "--pp-layout: found byte 10 at column 3" + letters);
  EXPECT_EQ(problem_of_text("Ett|ttmL"),
            "--pp-layout: found \"m\" at column 7, wanted a model without multi-token prediction, which is not built yet");
  EXPECT_EQ(problem_of_text("E(tt|ttL"), "--pp-layout: found \"(\" at column 2, wanted a ) behind it");
  EXPECT_EQ(problem_of_text("Ett)*2|L"), "--pp-layout: found \")\" at column 4, wanted a ( before it");
  EXPECT_EQ(problem_of_text("E(tt)|ttL"), "--pp-layout: found \"|\" at column 6, wanted *N behind )");
  EXPECT_EQ(problem_of_text("Et*|L"), "--pp-layout: found \"|\" at column 4, wanted how often to repeat, 1 or more");
  EXPECT_EQ(problem_of_text("Et*0|L"), "--pp-layout: found \"0\" at column 4, wanted how often to repeat, 1 or more");
  EXPECT_EQ(problem_of_text("Et*"), "--pp-layout: found the end at column 4, wanted how often to repeat, 1 or more");
}

TEST(StageLayout, AbsurdNumbersAreRefusedNotExpanded) {
  EXPECT_EQ(problem_of_text("Et*1000000000|L"), "--pp-layout: found more than 4 layers at column 2, wanted as many as there are");
  EXPECT_EQ(problem_of_text("Et*99999999999999999999|L"), "--pp-layout: found more than 4 layers at column 2, wanted as many as there are");
  EXPECT_EQ(problem_of_text("E((t*1000000)*1000000)*1000000000|L").substr(0, 37), "--pp-layout: found more than 4 layers");
  EXPECT_EQ(problem_of_text("E(t|)*1000000000L"), "--pp-layout: found more than 2 chunks at column 5, wanted stages x virtual stages, 2");
  EXPECT_EQ(problem_of_text("E(|)*1000000000L"), "--pp-layout: found more than 2 chunks at column 4, wanted stages x virtual stages, 2");
  EXPECT_EQ(problem_of_text("E" + std::string(100000, '(') + "t"), "--pp-layout: found more than 16 nested ( at column 18, wanted fewer");
  EXPECT_EQ(part_layers(stage_layout(1'000'000'000'000, 2, 1, {.layout = "Et*400000000000|t*600000000000L"})),
            (std::vector<std::int64_t>{400'000'000'000, 600'000'000'000}));
  // 15 chunks of 2^60 layers are beyond int64.
  EXPECT_EQ(problem(std::int64_t{1} << 60, 4, 2, {.layout = "E(t*1152921504606846976|)*7tL"}),
            "--pp-layout: found 8070450532247928833 layers, wanted the 1152921504606846976 of the model");
  EXPECT_EQ(problem(std::int64_t{1} << 60, 8, 2, {.layout = "E(t*1152921504606846976|)*15tL"}),
            "--pp-layout: found 9223372036854775807 layers, wanted the 1152921504606846976 of the model");
  EXPECT_EQ(problem(1'000'000'000'000, 2'000'000'000, 1), "--pp: found 2000000000, wanted at most 1048576");
  EXPECT_EQ(problem(1'000'000'000'000, 1000, 2'000'000'000),
            "--virtual-stages: found 2000000000, wanted at most 1048576 chunks in 1000 stages");
  EXPECT_THROW(stage_layout(0, 1, 1, {}), std::logic_error);
}

}  // namespace
}  // namespace stepsim
