#include "tools/storage_lives.h"

#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

TEST(StorageLives, AreAllTensorsOfADevice) {
  const StepRun run = run_step(resolve_job(main_job()));
  const std::vector<StorageLife> lives = storage_lives(run, DeviceId{0});
  Bytes at_peak;
  std::size_t claims = 0;
  for (const MemoryEvent& event : run.run.result.memory) claims += event.bytes.value > 0 ? 1 : 0;
  EXPECT_EQ(lives.size(), claims);  // of the only micro-batch
  for (const StorageLife& life : lives) {
    EXPECT_LE(life.born, life.dies);
    EXPECT_EQ(life.resident, !life.claimed_by.valid());
    if (life.at_peak) at_peak += run.step.graph.storages()[static_cast<std::size_t>(life.storage.index)].size;
  }
  EXPECT_EQ(at_peak, run.run.memory[0].peak.bytes);
  const nlohmann::json json = nlohmann::json::parse(storage_lives_json(run, lives));
  ASSERT_EQ(json.size(), lives.size());
  EXPECT_EQ(json[0]["born"], "before the step");
  for (const nlohmann::json& row : json) EXPECT_GE(row["block_bytes"].get<std::int64_t>(), row["bytes"].get<std::int64_t>());
  const std::string text = storage_lives_text(run, lives);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<std::ptrdiff_t>(lives.size()) + 2);  // two lines of head
  EXPECT_NE(peak_contents_text(run).find("by layer: outside layers "), std::string::npos) << peak_contents_text(run);
}

}  // namespace stepsim
