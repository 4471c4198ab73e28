// Offload of a stack of equal layers through the engine: against an independent oracle, a recurrence and the closed forms F1 to F6 of
// offload.md, section 5. Durations in picoseconds; in comments L, f, b, d, u, h, K, M, P as there.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "models/offload_graph.h"
#include "sim/metrics.h"
#include "sim/simulate.h"
#include "tests/properties/offload_oracle.h"

namespace stepsim {
namespace {

constexpr std::uint64_t kSeed = 20260710;

std::int64_t upto(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}

// Small numbers, zeros among them, so that instants coincide; half of the gates and look-aheads absent.
OracleStack random_stack(std::mt19937_64& random) {
  OracleStack of{.layers = upto(random, 1, 16), .max_resident = {}, .lookahead = {}};
  for (std::int64_t* const each : {&of.forward, &of.backward, &of.copy_out, &of.copy_in}) {
    *each = upto(random, 0, 9) == 0 ? 0 : upto(random, 1, 20);
  }
  const std::int64_t heads[] = {0, upto(random, 1, 30), 1000};
  of.head = heads[upto(random, 0, 2)];
  of.keep_last = upto(random, 0, of.layers + 1);
  if (upto(random, 0, 1) == 0) of.max_resident = upto(random, 0, of.layers + 2);
  if (upto(random, 0, 1) == 0) of.lookahead = upto(random, 0, of.layers + 2);
  of.engines = static_cast<int>(upto(random, 1, 2));
  return of;
}

OracleStack random_feasible_stack(std::mt19937_64& random) {
  OracleStack of = random_stack(random);
  if (of.max_resident) of.max_resident = std::max({*of.max_resident, std::min(of.keep_last, of.layers), std::int64_t{1}});
  return of;
}

std::string text_of(const OracleStack& of) {
  const auto gate = [](const std::optional<std::int64_t>& value) { return value ? std::to_string(*value) : std::string("none"); };
  std::string text;
  for (const std::int64_t each : {of.layers, of.forward, of.backward, of.copy_out, of.copy_in, of.head, of.keep_last}) {
    text += std::to_string(each);
    text += ' ';
  }
  return "seed " + std::to_string(kSeed) + ": L f b d u h K " + text + "M " + gate(of.max_resident) + " P " + gate(of.lookahead) +
         " engines " + std::to_string(of.engines);
}

OffloadStack stack_of(const OracleStack& of) {
  return {.layers = of.layers,
          .forward = Duration(of.forward),
          .backward = Duration(of.backward),
          .head = Duration(of.head),
          .copy_out = Duration(of.copy_out),
          .copy_in = Duration(of.copy_in),
          .keep_last = of.keep_last,
          .max_resident = of.max_resident,
          .lookahead = of.lookahead,
          .engines = of.engines};
}

struct OffloadRun {
  OffloadGraph made;
  StepResult result;
  OracleFigures figures;
  std::int64_t exposed = 0;
  std::int64_t backward_time() const { return figures.total - figures.forward_end; }  // with the head
};

OffloadRun run_of(const OracleStack& of) {
  OffloadRun run{.made = offload_graph(stack_of(of)), .result = {}, .figures = {}};
  run.result = simulate(run.made.graph, plain_machine(1), GivenCostModel(run.made.costs), {.device = LedgerRule::kDeviceOrder});
  EXPECT_FALSE(run.result.deadlock.has_value());
  EXPECT_EQ(run.result.timeline.size(), run.made.graph.ops().size());
  const OffloadFigures figures = offload_figures(stack_of(of), run.made, run.result);
  run.figures = {figures.forward_end.count(), figures.total.count(), figures.resident_sets, figures.host_sets};
  run.exposed = figures.exposed.count();
  return run;
}

void expect_figures(const OracleFigures& found, const OracleFigures& wanted) {
  EXPECT_EQ(found.forward_end, wanted.forward_end);
  EXPECT_EQ(found.total, wanted.total);
  EXPECT_EQ(found.resident_sets, wanted.resident_sets);
  EXPECT_EQ(found.host_sets, wanted.host_sets);
}

TEST(OffloadProperty, StepsAreTheOraclesAndWhatNeverEndsIsAFinding) {
  std::mt19937_64 random(kSeed);
  std::int64_t steps = 0, findings = 0;
  for (int i = 0; i < 20'000 && !HasFailure(); ++i) {
    const OracleStack of = random_stack(random);
    SCOPED_TRACE(text_of(of));
    const std::optional<OracleFigures> wanted = oracle_figures(of);
    ASSERT_EQ(offload_finding(stack_of(of)).has_value(), !wanted.has_value());
    ++(wanted ? steps : findings);
    if (!wanted) continue;
    const OffloadRun run = run_of(of);
    expect_figures(run.figures, *wanted);
    EXPECT_EQ(run.exposed, wanted->total - of.layers * (of.forward + of.backward) - of.head);
  }
  EXPECT_GE(steps, 10'000);
  EXPECT_GE(findings, 1'000);
  std::printf("seed %llu: %lld steps, %lld findings\n", static_cast<unsigned long long>(kSeed), static_cast<long long>(steps),
              static_cast<long long>(findings));
}

TEST(OffloadProperty, FeasibleGatesNeverDeadlockAndHoldAndAllThatIsExposedIsCopies) {
  std::mt19937_64 random(kSeed + 1);
  for (int i = 0; i < 10'000 && !HasFailure(); ++i) {
    const OracleStack of = random_feasible_stack(random);
    SCOPED_TRACE(text_of(of));
    const OffloadRun run = run_of(of);  // expects that every op ran
    const std::int64_t kept = std::min(of.keep_last, of.layers);
    EXPECT_LE(run.figures.resident_sets, of.max_resident.value_or(of.layers));
    EXPECT_GE(run.figures.resident_sets, std::max<std::int64_t>(kept, 1));
    EXPECT_EQ(run.figures.host_sets, of.layers - kept);  // the first copy in follows the last copy out
    const TimePartition time = time_partition(run.made.graph, run.result, {});
    EXPECT_EQ(time.total(), run.result.end);
    ASSERT_EQ(time.exposed_copy.size(), 1u);
    EXPECT_EQ(time.exposed_copy[0].count(), run.exposed);
  }
}

TEST(OffloadProperty, OneSharedEngineIsNeverFasterThanTwo) {
  std::mt19937_64 random(kSeed + 2);
  for (int i = 0; i < 3'000 && !HasFailure(); ++i) {
    OracleStack of = random_feasible_stack(random);
    SCOPED_TRACE(text_of(of));
    of.engines = 1;
    const OffloadRun shared = run_of(of);
    of.engines = 2;
    const OffloadRun separate = run_of(of);
    EXPECT_GE(shared.figures.total, separate.figures.total);
    expect_figures(shared.figures, separate.figures);  // and with one micro-batch no slower: the directions never overlap
  }
}

// What a longer copy, a tighter gate or a later reload costs is never negative.
TEST(OffloadProperty, LongerCopiesAndTighterGatesAreNeverFaster) {
  std::mt19937_64 random(kSeed + 3);
  for (int i = 0; i < 3'000 && !HasFailure(); ++i) {
    OracleStack of = random_feasible_stack(random);
    SCOPED_TRACE(text_of(of));
    const std::int64_t total = run_of(of).figures.total;
    OracleStack slower = of, wider = of, eager = of;
    slower.copy_out += upto(random, 0, 3);
    slower.copy_in += upto(random, 0, 3);
    wider.max_resident.reset();
    eager.lookahead.reset();
    EXPECT_GE(run_of(slower).figures.total, total);
    EXPECT_LE(run_of(wider).figures.total, total);
    EXPECT_LE(run_of(eager).figures.total, total);
  }
}

// Positive durations: closed forms speak of copies and layers that take time.
OracleStack random_form(std::mt19937_64& random) {
  return {.layers = upto(random, 2, 20),
          .forward = upto(random, 1, 20),
          .backward = upto(random, 1, 20),
          .head = 0,
          .copy_out = upto(random, 1, 25),
          .copy_in = upto(random, 1, 25),
          .max_resident = {},
          .lookahead = {},
          .engines = static_cast<int>(upto(random, 1, 2))};
}

constexpr std::int64_t kDrained = 100'000;  // a head behind which every copy out has ended

template <class Check>
void for_forms(std::uint64_t seed, Check check) {
  std::mt19937_64 random(kSeed + seed);
  for (int i = 0; i < 2'000 && !testing::Test::HasFailure(); ++i) {
    OracleStack of = random_form(random);
    check(random, of);
  }
}

TEST(OffloadForms, F1WithoutOverlap) {
  for_forms(11, [](std::mt19937_64& random, OracleStack& of) {
    of.max_resident = 1;
    of.lookahead = 0;
    of.head = of.copy_out + upto(random, 0, 10);
    SCOPED_TRACE(text_of(of));
    // L f + (L - 1) d + max(h, d) + L (b + u)
    EXPECT_EQ(run_of(of).figures.total, of.layers * of.forward + (of.layers - 1) * of.copy_out + std::max(of.head, of.copy_out) +
                                            of.layers * (of.backward + of.copy_in));
  });
}

TEST(OffloadForms, F2ForwardWithAGate) {
  for_forms(12, [](std::mt19937_64& random, OracleStack& of) {
    const std::int64_t gate = upto(random, 1, of.layers + 1);
    of.max_resident = gate;
    of.keep_last = upto(random, 0, std::min(gate, of.layers));
    if (upto(random, 0, 1) == 0) of.lookahead = upto(random, 0, of.layers);
    SCOPED_TRACE(text_of(of));
    const std::int64_t compute = of.layers * of.forward;
    // M >= 2: max(L f, 2 f + (L - M) d); M = 1: L f + (L - 1) d; no gate: L f
    const std::int64_t gated = std::max(compute, 2 * of.forward + (of.layers - gate) * of.copy_out);
    EXPECT_EQ(run_of(of).figures.forward_end, gate == 1 ? compute + (of.layers - 1) * of.copy_out : gated);
    of.max_resident.reset();
    EXPECT_EQ(run_of(of).figures.forward_end, compute);
  });
}

TEST(OffloadForms, F3CopiesOutQueueUpAndTheirSetsStay) {
  for_forms(13, [](std::mt19937_64&, OracleStack& of) {
    of.lookahead = 0;  // so that the peak is that of forward
    of.head = kDrained;
    SCOPED_TRACE(text_of(of));
    const OffloadRun run = run_of(of);
    // c_i = max(i f, c_{i-1}) + d
    std::int64_t layer = 0, ended = 0;
    for (const OpRun& each : run.result.timeline) {
      if (op_class(run.made.graph.work(each.op)) != OpClass::kCopyToHost) continue;
      ++layer;
      ended = std::max(layer * of.forward, ended) + of.copy_out;
      EXPECT_EQ(each.end.count(), ended);
      if (of.copy_out >= of.forward) {
        EXPECT_EQ(ended, of.forward + layer * of.copy_out);
      }
    }
    EXPECT_EQ(layer, of.layers);
    // d <= f: 2; else L - floor((L - 2) f / d)
    const std::int64_t queued = of.layers - (of.layers - 2) * of.forward / of.copy_out;
    EXPECT_EQ(run.figures.resident_sets, of.copy_out <= of.forward ? 2 : queued);
  });
}

TEST(OffloadForms, F4BackwardWithALookahead) {
  for_forms(14, [](std::mt19937_64& random, OracleStack& of) {
    of.head = kDrained;
    of.keep_last = upto(random, 0, of.layers);
    const std::int64_t ahead = upto(random, 1, of.layers + 1), back = of.layers - of.keep_last;
    of.lookahead = ahead;
    SCOPED_TRACE(text_of(of));
    const std::int64_t b = of.backward, u = of.copy_in, first = std::max<std::int64_t>(of.keep_last - ahead, 0) * b;
    // u >= b: max(L b, max(K - P, 0) b + (L - K) u + b); u < b: max(L b, max(K - P, 0) b + u + (L - K) b)
    const std::int64_t copies = u >= b ? first + back * u + b : first + u + back * b;
    const OffloadRun run = run_of(of);
    EXPECT_EQ(run.backward_time(), of.head + std::max(of.layers * b, copies));
    if (of.keep_last == 0) {
      EXPECT_EQ(run.backward_time(), of.head + u + b + (of.layers - 1) * std::max(u, b));
    }
  });
}

TEST(OffloadForms, F4TheLastCopyOutIsATailBehindAShortHead) {
  for_forms(15, [](std::mt19937_64& random, OracleStack& of) {
    of.copy_out = upto(random, 1, of.forward);  // compute-bound: each copy out ends before the next forward does
    of.head = upto(random, 0, 25);
    if (upto(random, 0, 1) == 0) of.lookahead = upto(random, 1, of.layers);
    SCOPED_TRACE(text_of(of));
    const std::int64_t b = of.backward, u = of.copy_in;
    EXPECT_EQ(run_of(of).backward_time(),
              of.head + u + b + (of.layers - 1) * std::max(u, b) + std::max<std::int64_t>(0, of.copy_out - of.head));
  });
}

TEST(OffloadForms, F5TransformerEngine) {
  for_forms(16, [](std::mt19937_64& random, OracleStack& of) {
    const std::int64_t kept = upto(random, 1, of.layers);
    of.keep_last = kept;
    of.max_resident = kept;
    of.lookahead = kept - 1;
    of.head = upto(random, 0, 30);
    SCOPED_TRACE(text_of(of));
    const OffloadRun run = run_of(of);
    const RecurrenceTimes times = transformer_engine_times(of, kept);
    EXPECT_EQ(run.figures.forward_end, times.forward_end);
    EXPECT_EQ(run.figures.total, times.total);
    EXPECT_EQ(run.figures.resident_sets, kept);
    if (kept == 1) {  // no overlap: the head follows the last forward, whose set stays
      EXPECT_EQ(run.exposed, (of.layers - 1) * (of.copy_out + of.copy_in));
      return;
    }
    // max(L f, 2 f + (L - K) d) + h + max(L b, 2 b + (L - K) u), so nothing is exposed where (L - K) d <= (L - 2) f and (L - K) u <= (L -
    // 2) b
    const std::int64_t out = (of.layers - kept) * of.copy_out, in = (of.layers - kept) * of.copy_in;
    EXPECT_EQ(run.figures.total,
              std::max(of.layers * of.forward, 2 * of.forward + out) + of.head + std::max(of.layers * of.backward, 2 * of.backward + in));
    EXPECT_EQ(run.exposed == 0, out <= (of.layers - 2) * of.forward && in <= (of.layers - 2) * of.backward);
  });
}

TEST(OffloadForms, F6EagerReloadsBehindAGate) {
  for_forms(17, [](std::mt19937_64& random, OracleStack& of) {
    of.head = kDrained;
    of.keep_last = upto(random, 0, of.layers);
    of.max_resident = std::max<std::int64_t>(2, of.keep_last + upto(random, 1, of.layers));  // M = 1, K = 0 has one buffer: F1
    SCOPED_TRACE(text_of(of));
    const std::int64_t b = of.backward, u = of.copy_in, back = of.layers - of.keep_last;
    // u >= b: max(L b, (L - K) u + b); u < b: max(L b, u + (L - K) b)
    const std::int64_t copies = u >= b ? back * u + b : u + back * b;
    EXPECT_EQ(run_of(of).backward_time(), of.head + std::max(of.layers * b, copies));
  });
}

}  // namespace
}  // namespace stepsim
