#include "tools/job_entries.h"

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

static std::string shown(const JobEntries& entries, const std::string& path) {
  const auto entry = entries.values.find(path);
  if (entry == entries.values.end()) return "none";
  const SourceLocation& where = entry->second.where;
  const std::string file = where.file.substr(where.file.rfind('/') + 1);
  std::string text = entry->second.value + " " + file;
  if (where.line > 0) text.append(":").append(std::to_string(where.line)).append(":").append(std::to_string(where.column));
  return text;
}

TEST(JobEntries, KeepThePlaceOfEveryValue) {
  const std::string file = written("job.textproto", "model { name: \"llama3-8b\" }\nparallel {\n  tp: 8\n}\n");
  const JobEntries entries = job_entries({file, {flag("--sequence", "4096"), flag("--set", "training.dropout=0.5")}});
  EXPECT_EQ(shown(entries, "model.name"), "llama3-8b job.textproto:1:9");
  EXPECT_EQ(shown(entries, "parallel.tp"), "8 job.textproto:3:3");
  EXPECT_EQ(shown(entries, "training.sequence"), "4096 --sequence");
  EXPECT_EQ(shown(entries, "training.dropout"), "0.5 --set");
  EXPECT_EQ(entries.files, std::vector<std::string>{file});
}

TEST(JobEntries, FlagsStandAboveTheFileAndSetAboveFlags) {
  const std::string file = written("job.json", "{\"parallel\": {\"tp\": 2}, \"training\": {\"sequence\": 1}}");
  EXPECT_EQ(shown(job_entries({file, {}}), "parallel.tp"), "2 job.json:1:15");
  EXPECT_EQ(shown(job_entries({file, {flag("--tp", "4")}}), "parallel.tp"), "4 --tp");
  EXPECT_EQ(shown(job_entries({file, {flag("--tp", "2")}}), "parallel.tp"), "2 --tp");  // also when it says the same
  EXPECT_EQ(shown(job_entries({file, {flag("--set", "parallel.tp=8"), flag("--tp", "4")}}), "parallel.tp"), "8 --set");
  EXPECT_EQ(shown(job_entries({file, {flag("--tp", "4")}}), "training.sequence"), "1 job.json:1:38");
}

TEST(JobEntries, ARecomputeFlagReplacesTheDetailsOfTheFile) {
  const std::string file = written("job.textproto", "placement { recompute: \"full\" recompute_num_layers: 4 }");
  const JobEntries entries = job_entries({file, {flag("--recompute-modules", "mlp,act"), flag("--recompute", "selective")}});
  EXPECT_EQ(shown(entries, "placement.recompute"), "selective --recompute");
  EXPECT_EQ(shown(entries, "placement.recompute_num_layers"), "none");
  EXPECT_EQ(shown(entries, "placement.recompute_modules[0]"), "mlp --recompute-modules");
  EXPECT_EQ(shown(entries, "placement.recompute_modules[1]"), "act --recompute-modules");
}

TEST(JobEntries, ARecomputeFlagReplacesTheUsualPlacementOfTheFileButNotAFlag) {
  const std::string file = written("job.textproto", "placement { name: \"full\" }");
  EXPECT_EQ(shown(job_entries({file, {flag("--recompute", "none")}}), "placement.name"), "none");
  EXPECT_EQ(shown(job_entries({"", {flag("--recompute", "none"), flag("--placement", "full")}}), "placement.name"), "full --placement");
}

TEST(JobEntries, APlacementFileStandsBelowTheJobAndItsRowsComeFirst) {
  written("rows.textproto", "recompute: \"none\"\nrows { tensor: \"act\" action: \"recompute\" }\n");
  const std::string file =
      written("job.textproto", "placement { name: \"rows.textproto\"\n  rows { tensor: \"layernorm\" action: \"keep\" }\n}");
  const JobEntries entries = job_entries({file, {flag("--set", "placement.layers[3].mlp=recompute")}});  // the name is beside the job file
  EXPECT_EQ(shown(entries, "placement.rows[0].tensor"), "act rows.textproto:2:8");
  EXPECT_EQ(shown(entries, "placement.rows[1].tensor"), "layernorm job.textproto:2:10");
  EXPECT_EQ(shown(entries, "placement.rows[2].tensor"), "mlp --set placement.layers[3].mlp");
  EXPECT_EQ(shown(entries, "placement.rows[2].first_layer"), "3 --set placement.layers[3].mlp");
  EXPECT_EQ(shown(entries, "placement.rows[2].last_layer"), "3 --set placement.layers[3].mlp");
  EXPECT_EQ(shown(entries, "placement.recompute"), "none rows.textproto:1:1");
  EXPECT_EQ(entries.files.size(), 2u);
}

TEST(JobEntries, FieldsOfMachineAndClusterGoToTheirLoaders) {
  const JobEntries entries = job_entries(
      {"", {flag("--set", "hardware.peak.bf16=1200 TFLOP/s"), flag("--set", "cluster.gpus_per_node=4"), flag("--set", "hardware.gpus=8")}});
  const std::vector<std::pair<std::string, std::string>> machine = {{"peak.bf16", "1200 TFLOP/s"}}, cluster = {{"gpus_per_node", "4"}};
  EXPECT_EQ(entries.machine, machine);
  EXPECT_EQ(entries.cluster, cluster);
  EXPECT_EQ(shown(entries, "hardware.gpus"), "8 --set");
}

TEST(JobEntries, NameThePlaceOfMistakes) {
  const std::string file = written("job.textproto", "model { }\nparalel { }");
  EXPECT_EQ(error_of([&] {
              job_entries({file, {}});
            }),
            file + ":2:1: found unknown field \"paralel\", wanted a field of Job, did you mean \"parallel\"?");
  const auto problem = [](const FlagValue& value) { return error_of([&] { job_entries({"", {value}}); }); };
  EXPECT_EQ(problem(flag("--tp", "eight")), "--tp: found \"eight\", wanted a whole number");
  EXPECT_EQ(problem(flag("--set", "parallel.tpp=8")),
            "--set parallel.tpp: found unknown field \"tpp\", wanted a field of Parallel, did you mean \"tp\"?");
  EXPECT_EQ(problem(flag("--set", "placement.layers[x].mlp=keep")),
            "--set: found \"placement.layers[x].mlp\", wanted placement.layers[N].TENSOR=ACTION");
  const std::string placement = problem(flag("--placement", "ful"));
  EXPECT_TRUE(placement.starts_with("--placement: found \"ful\", wanted a file or one of none, full, selective, halving, te, "))
      << placement;
  EXPECT_TRUE(placement.ends_with(", did you mean \"full\"?")) << placement;
  EXPECT_EQ(error_of([] { parse_set("parallel.tp"); }), "--set: found \"parallel.tp\", wanted PATH=VALUE, such as parallel.tp=8");
}

}  // namespace stepsim
