#include "sim/allocator_rules.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

namespace stepsim {

// memory/allocator_vectors.json: every vector, both kinds of segments.
TEST(AllocatorRules, AreThoseOfTheVectors) {
  std::ifstream file(STEPSIM_SHARED_DIR "/data/memory/allocator_vectors.json");
  if (!file) GTEST_SKIP() << "no vectors";
  const nlohmann::json vectors = nlohmann::json::parse(file)["vectors"];
  EXPECT_EQ(vectors.size(), 19u);
  for (const nlohmann::json& vector : vectors) {
    SCOPED_TRACE(vector.dump());
    const Bytes block = block_size(Bytes(vector["request"].get<std::int64_t>()));
    EXPECT_EQ(block.value, vector["block_rounded"].get<std::int64_t>());
    EXPECT_EQ(is_small_block(block) ? "small" : "large", vector["pool"].get<std::string>());
    const Bytes segment = segment_size(block);
    EXPECT_EQ(segment.value, vector["new_segment"].get<std::int64_t>());
    const bool cut = splits({}, segment, block);
    EXPECT_EQ(cut, vector["split_default"].get<bool>());
    EXPECT_EQ((cut ? block : segment).value, vector["block_after_default"].get<std::int64_t>());
    EXPECT_EQ(splits({.expandable_segments = true}, segment, block), vector["split_expandable"].get<bool>());
  }
}

TEST(AllocatorRules, ALargeBlockKeepsARestOfAMebibyte) {
  const Bytes mebibyte(1 << 20), block(12 << 20);
  EXPECT_FALSE(splits({}, block + mebibyte, block));
  EXPECT_TRUE(splits({}, block + mebibyte + Bytes(512), block));
  EXPECT_TRUE(splits({.expandable_segments = true}, block + Bytes(512), block));
}

TEST(AllocatorRules, OversizeBlocksStayWhole) {
  const AllocatorSettings settings{.max_split_size = Bytes(100 << 20)};
  EXPECT_FALSE(splits(settings, Bytes(300 << 20), Bytes(100 << 20)));  // of that class: whole
  EXPECT_TRUE(splits(settings, Bytes(90 << 20), Bytes(50 << 20)));
  EXPECT_FALSE(may_serve(settings, Bytes(100 << 20), Bytes(50 << 20)));   // kept for large requests
  EXPECT_TRUE(may_serve(settings, Bytes(119 << 20), Bytes(100 << 20)));   // less than 20 MiB too large
  EXPECT_FALSE(may_serve(settings, Bytes(120 << 20), Bytes(100 << 20)));  // not so
}

TEST(AllocatorRules, AbsurdRequestsAreThoseOfAPebibyte) {
  EXPECT_EQ(block_size(Bytes(INT64_MAX)).value, kLargestRequest);
  EXPECT_EQ(block_size(Bytes(0)).value, 512);
}

}  // namespace stepsim
