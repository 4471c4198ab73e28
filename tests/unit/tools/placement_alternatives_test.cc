#include "tools/placement_alternatives.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/tools/test_jobs.h"
#include "tools/run_summary.h"

namespace stepsim {

using testing::ElementsAre;
using testing::HasSubstr;

static PlacementAlternatives alternatives_of(const JobInput& input) {
  const Job job = resolve_job(input);
  return placement_alternatives(job, run_step(job));
}

static std::vector<std::string> flags_of(const std::vector<PlacementPolicy>& policies) {
  std::vector<std::string> flags;
  for (const PlacementPolicy& policy : policies) flags.push_back(placement_flags(policy));
  return flags;
}

static const StepFigures& with(const PlacementAlternatives& alternatives, const std::string& flags) {
  const auto found = std::find_if(alternatives.tried.begin(), alternatives.tried.end(),
                                  [&](const PlacementAlternative& alternative) { return alternative.flags == flags; });
  if (found == alternatives.tried.end()) throw std::runtime_error("not tried: " + flags);
  return found->figures;
}

// The line of the summary that begins so.
static std::string line_of(const JobInput& input, const std::string& begin) {
  const Job job = resolve_job(input);
  const StepRun run = run_step(job);
  const std::string text = run_summary(job, run, placement_alternatives(job, run));
  const std::size_t at = text.find("\n" + begin);
  return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

TEST(PlacementAlternatives, TriesWhatTheModelTakesButTheJobsOwn) {
  EXPECT_THAT(
      flags_of(usual_placements(resolve_job(main_job("4")))),
      ElementsAre("--recompute selective --recompute-modules layernorm", "--recompute selective --recompute-modules act",
                  "--recompute selective --recompute-modules core_attn", "--recompute selective --recompute-modules mlp",
                  "--recompute selective --recompute-modules layernorm,act", "--recompute full",
                  "--recompute full --recompute-num-layers 2", "--recompute full --recompute-num-layers 4",
                  "--recompute full --recompute-method block --recompute-num-layers 2", "--recompute full --recompute-segments halving"));
  const auto tried = [](const std::string& layers, std::vector<FlagValue> more, const std::string& flags) {
    const std::vector<std::string> all = flags_of(usual_placements(resolve_job(main_job(layers, std::move(more)))));
    return std::count(all.begin(), all.end(), flags);
  };
  EXPECT_EQ(tried("4", {flag("--recompute", "full")}, "--recompute full"), 0);
  EXPECT_EQ(tried("4", {flag("--recompute", "full")}, "--recompute none"), 1);
  const std::string attention = "--recompute selective --recompute-modules core_attn";
  EXPECT_EQ(tried("4", {flag("--recompute", "selective")}, attention), 0);  // what selective means without modules
  EXPECT_EQ(tried("4", {flag("--recompute-segments", "2")}, "--recompute full"), 1);
  EXPECT_EQ(tried("1", {}, "--recompute full"), 1);
  EXPECT_EQ(tried("1", {}, "--recompute full --recompute-num-layers 2"), 0);                           // more layers than there are
  EXPECT_EQ(tried("1", {}, "--recompute full --recompute-method block --recompute-num-layers 0"), 0);  // 1 / 2
}

TEST(PlacementAlternatives, FiguresAreThoseOfTheJobWithTheFlags) {
  const PlacementAlternatives alternatives = alternatives_of(main_job("4"));
  const StepRun full = run_step(resolve_job(main_job("4", {flag("--recompute", "full"), flag("--recompute-num-layers", "2")})));
  const StepFigures& figures = with(alternatives, "--recompute full --recompute-num-layers 2");
  EXPECT_EQ(figures.step, full.run.result.end);
  EXPECT_EQ(figures.peak, full.run.worst().peak.bytes);
  EXPECT_TRUE(figures.fits);
  const StepRun own = run_step(resolve_job(main_job("4")));
  EXPECT_EQ(alternatives.own.step, own.run.result.end);
  EXPECT_EQ(alternatives.own.peak, own.run.worst().peak.bytes);
}

TEST(PlacementAlternatives, KeepingAllIsTheFastest) {
  const PlacementAlternatives alternatives = alternatives_of(main_job("8"));
  for (const PlacementAlternative& other : alternatives.tried) EXPECT_GE(other.figures.step, alternatives.own.step) << other.flags;
  EXPECT_FALSE(cheapest_time(alternatives.own, alternatives.tried).has_value());
  const auto best = cheapest_memory(alternatives.own, alternatives.tried);
  ASSERT_TRUE(best.has_value());
  EXPECT_LT(alternatives.tried[*best].figures.peak, alternatives.own.peak);
  EXPECT_EQ(line_of(main_job("8"), "cheapest time"), "cheapest time: none of the usual placements shortens the step");
  EXPECT_THAT(line_of(main_job("8"), "cheapest GiB"), HasSubstr("cheapest GiB: --recompute selective --recompute-modules "));
}

TEST(PlacementAlternatives, FullRecomputeLeavesTimeToBuyBack) {
  const JobInput input = main_job("8", {flag("--recompute", "full")});
  const PlacementAlternatives alternatives = alternatives_of(input);
  EXPECT_FALSE(cheapest_memory(alternatives.own, alternatives.tried).has_value());
  const auto best = cheapest_time(alternatives.own, alternatives.tried);
  ASSERT_TRUE(best.has_value());
  EXPECT_LT(alternatives.tried[*best].figures.step, alternatives.own.step);
  EXPECT_GE(alternatives.tried[*best].figures.peak, alternatives.own.peak);
  EXPECT_EQ(line_of(input, "cheapest GiB"), "cheapest GiB: none of the placements tried frees memory");
  EXPECT_THAT(line_of(input, "cheapest time"), HasSubstr(" saves "));
}

// Unfused attention keeps 5as/h of scores: making them again frees most of a layer at a small part of a second forward (2205.05198
// section 5, against full recompute).
TEST(PlacementAlternatives, TheAttentionCoreIsCheapMemoryOfUnfusedAttention) {
  const JobInput input{"",
                       {flag("--model", "gpt3-175b"), flag("--hardware", "a100-sxm-80gb"), flag("--tp", "8"),
                        flag("--attention", "unfused"), flag("--layers", "4")}};
  const PlacementAlternatives alternatives = alternatives_of(input);
  const auto freed = [&](const StepFigures& other) { return static_cast<double>((alternatives.own.peak - other.peak).value); };
  const auto price = [&](const StepFigures& other) {
    return static_cast<double>((other.step - alternatives.own.step).count()) / freed(other);
  };
  const StepFigures& core = with(alternatives, "--recompute selective --recompute-modules core_attn");
  EXPECT_GT(freed(core), freed(with(alternatives, "--recompute selective --recompute-modules act")));
  EXPECT_LT(price(core), price(with(alternatives, "--recompute full")));
  EXPECT_LT(price(core), price(with(alternatives, "--recompute selective --recompute-modules mlp")));
  const auto best = cheapest_memory(alternatives.own, alternatives.tried);
  ASSERT_TRUE(best.has_value());
  EXPECT_LE(price(alternatives.tried[*best].figures), price(core));
}

TEST(PlacementAlternatives, SaysWhyItDidNotSearch) {
  const JobInput many = main_job("32", {flag("--global-batch", "1024")});
  EXPECT_TRUE(alternatives_of(many).tried.empty());
  EXPECT_THAT(line_of(many, "cheapest GiB and time: not searched"), HasSubstr("ops, more than 300000"));
  const JobInput stopping = main_job("2", {flag("--stop-at-out-of-memory", "true")});
  EXPECT_TRUE(alternatives_of(stopping).tried.empty());
  EXPECT_EQ(line_of(stopping, "cheapest"), "cheapest GiB and time: not searched: the job stops at out of memory");
}

static PlacementAlternative made(std::int64_t step_ms, std::int64_t peak_gib, std::int64_t short_gib = 0) {
  const auto gib = [](std::int64_t count) { return Bytes{count << 30}; };
  return {{}, "", {Duration{step_ms * 1'000'000'000}, gib(peak_gib), gib(short_gib), short_gib == 0}};
}

TEST(PlacementAlternatives, RanksMemoryByTimePerByte) {
  const StepFigures own = made(100, 50).figures;
  EXPECT_EQ(cheapest_memory(own, {made(104, 40), made(102, 46), made(110, 20)}), 2u);  // 0.4, 0.5 and 0.33 ms per GiB
  EXPECT_EQ(cheapest_memory(own, {made(101, 40), made(100, 49), made(99, 48)}), 2u);   // no slower, and frees 2 GiB rather than 1
  EXPECT_EQ(cheapest_memory(own, {made(102, 40), made(102, 40)}), 0u);                 // equal: the first
  EXPECT_EQ(cheapest_memory(own, {made(90, 50), made(80, 60)}), std::nullopt);
  PlacementAlternative little = made(100, 50);
  little.figures.peak.value -= (std::int64_t{64} << 20) - 1;  // 64 MiB are less than 1 % of 50 GiB
  EXPECT_EQ(cheapest_memory(own, {little}), std::nullopt);
  little.figures.peak.value -= 1;
  EXPECT_EQ(cheapest_memory(own, {little}), 0u);
}

TEST(PlacementAlternatives, RanksTimeByMemoryPerTime) {
  const StepFigures own = made(100, 50).figures;
  EXPECT_EQ(cheapest_time(own, {made(90, 60), made(80, 65), made(99, 52)}), 1u);  // 1, 0.75 and 2 GiB per ms
  EXPECT_EQ(cheapest_time(own, {made(90, 60), made(60, 65, 3)}), 0u);             // the other, 0.375 GiB per ms, does not fit
  EXPECT_EQ(cheapest_time(own, {made(80, 90, 10), made(60, 85, 5)}), 1u);         // none fits
  EXPECT_EQ(cheapest_time(own, {made(10, 51), made(95, 50), made(97, 40)}), 1u);  // for no memory, and the faster of two
  EXPECT_EQ(cheapest_time(own, {made(100, 40), made(101, 30)}), std::nullopt);
  PlacementAlternative little = made(100, 50);
  little.figures.step -= Duration{99'999'999};  // 0.1 % of 100 ms are 10^8 ps
  EXPECT_EQ(cheapest_time(own, {little}), std::nullopt);
  little.figures.step -= Duration{1};
  EXPECT_EQ(cheapest_time(own, {little}), 0u);
}

// Keeping all needs more than the card has: the line says by how much.
TEST(PlacementAlternatives, SaysWhatDoesNotFit) {
  const std::vector<FlagValue> small = {flag("--recompute", "full"), flag("--set", "hardware.memory=19.5 GB")};
  const PlacementAlternatives alternatives = alternatives_of(main_job("32", small));
  ASSERT_TRUE(alternatives.own.fits);
  const StepFigures& none = with(alternatives, "--recompute none");
  EXPECT_FALSE(none.fits);
  EXPECT_GT(none.short_by.value, 0);
  const Job job = resolve_job(main_job("32", small));
  PlacementAlternatives only{"", alternatives.own, {{{}, "--recompute none", none}}};
  EXPECT_THAT(run_summary(job, run_step(job), only), HasSubstr(" GiB short\nevidence"));
}

// The usual placements move nothing: keeping all is one of them for a job that offloads, and the line says what it is without.
TEST(PlacementAlternatives, OfAJobThatOffloads) {
  const JobInput input = main_job("4", {flag("--offload-modules", "*"), parse_set("hardware.host_to_device=100 MB/s")});
  const PlacementAlternatives alternatives = alternatives_of(input);
  EXPECT_EQ(with(alternatives, "--recompute none").step, alternatives_of(main_job("4")).own.step);
  ASSERT_TRUE(alternatives.offload);
  EXPECT_EQ(alternatives.offload->kept.step, with(alternatives, "--recompute none").step);
  EXPECT_THAT(line_of(input, "cheapest time: "), HasSubstr(" without offload saves "));
  EXPECT_FALSE(alternatives_of(main_job("4")).offload);
}

}  // namespace stepsim
