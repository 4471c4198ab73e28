// The layouts of published measurements: which rows they have, what each measures and what stepsim says of it. One function a format.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/csv_table.h"
#include "tools/nearest_steps.h"

namespace stepsim {

struct Comparison {
  std::string id;       // the id column, or the line number; of a JSON list the row's number, from 1
  std::size_t row = 0;  // index into CsvTable::rows
  double measured = 0, simulated = 0;
  std::string difference{};                // exact formats: everything in which the row differs; "" nothing
  std::optional<double> lower{}, upper{};  // the band of what is simulated
  std::vector<std::string> guesses{};      // what the row does not say and the job takes
  bool verdict = false;                    // both are 1 (yes) or 0 (no): the error is their difference
  double error() const {
    if (verdict) return simulated - measured;
    return simulated == measured ? 0 : simulated / measured - 1;
  }
  bool banded() const { return lower.has_value() && upper.has_value(); }
  bool inside() const { return banded() && *lower <= measured && measured <= *upper; }
};

// Of the rows that have a band.
struct BandStatistics {
  double inside = 0;      // share of them in which the measured figure lies within it
  double half_width = 0;  // median of half its width over what is simulated, by nearest rank
};
// None if no row has one.
std::optional<BandStatistics> band_statistics(const std::vector<Comparison>& rows);

struct PublishedOptions {
  std::string quality = "A,B";  // of the rows that are compared, where a table grades them
  std::function<void(std::size_t done, std::size_t all)> progress{};
};

struct PublishedComparison {
  std::string quantity;  // "latency_us"
  bool exact = false;    // what is published is no measurement: a row that differs at all is a mismatch
  std::vector<Comparison> rows;
  std::size_t filtered = 0;
  std::map<std::string, std::size_t> skipped;  // reason -> rows
  std::size_t gaps = 0;                        // of them: configurations are known, and this program cannot run them
  // What the rows measure beside that, by name; rows without it are left out.
  std::map<std::string, std::vector<Comparison>> other{};
  // By what else than columns rows are told apart: by name ("group", "size"), of each of `rows` its value. Statistics show them unasked.
  std::map<std::string, std::vector<std::string>> labels{};
  std::vector<std::string> notes{};         // a sentence each
  std::vector<MeasuredStepRow> evidence{};  // of whole steps that were measured: rows of the table that the program carries
};

// A CSV file with a head, or a JSON list of rows.
CsvTable parse_published(std::string_view text, const std::string& file);

// The format of a table by its head; InputError if it is none.
std::string detected_format(const CsvTable& table);

// InputError ("--evidence") unless the format's rows are whole steps that were measured.
void check_evidence(const std::string& format);

// InputError for a format that is unknown, or a table without its columns.
PublishedComparison compare_published(const std::string& format, const CsvTable& table, const PublishedOptions& options = {});

// kernels/gemm_aic_*.csv: op,dtype,m,n,k,gpu,latency_us.
PublishedComparison compare_gemm(const CsvTable& table);

// kernels/attn_aic_*.csv: op,dtype,causal,batch,seq,heads,kv_heads,head_dim,gpu,latency_us, TensorRT-LLM's kernel.
// flash_attention_tables.csv: gpu,impl,pass,causal,head_dim,batch,seq,heads,tflops,latency_us, where a row without a latency gives FLOP/s.
PublishedComparison compare_attention(const CsvTable& table);

// kernels/nccl_aic.csv: op,num_gpus,message_bytes,gpu,latency_us.
PublishedComparison compare_collective(const CsvTable& table);

// kernels/neusight_vec_*.csv: op,rows,cols,gpu,latency_us; dtype, without which it is fp32.
PublishedComparison compare_elementwise(const CsvTable& table);

// published/results.csv: seconds of whole steps, with the peaks and the verdicts of the rows that say them. Rows of other qualities are
// filtered. InputError for a quality that is none of A to D.
PublishedComparison compare_results(const CsvTable& table, const PublishedOptions& options);

// published/pairs.csv: time of a variant over that of its base, both rows of results.csv beside the file.
PublishedComparison compare_pairs(const CsvTable& table, const PublishedOptions& options);

// published/mpt_llmfoundry.csv: tokens per second; sizes of models from mpt_model_configs.json, if that lies beside the file.
PublishedComparison compare_mpt(const CsvTable& table, const PublishedOptions& options);

// published/vtrain_megatron_multi_node_a100.csv: seconds of a step.
PublishedComparison compare_vtrain(const CsvTable& table, const PublishedOptions& options);

// memory/megatron_golden_memory.csv: case, golden and what Megatron-LM's functional test of that name allocated; arguments from
// megatron_golden_configs.json beside the file, else from the columns. The peak is of the last pipeline stage's GPU behind iteration 2
// (fp16: the last iteration), other: behind iteration 1, and what stays allocated between steps.
PublishedComparison compare_memory(const CsvTable& table);

// schedules/pipeline_closed_forms.json: makespans and passes in flight of schedules whose stages are alike, exact. 1 unit of time is 1 ms:
// rows with durations that are no whole number of picoseconds are skipped. P2P (none: 0) is overlapped as models/pipeline_program.h says.
// InputError with the place: a row without its schedule, dimensions, durations or any makespan; a value of another type or below its range.
PublishedComparison compare_pipeline(const CsvTable& table);

// offload/closed_form_cases.json: times, sets on the device and on the host of a stack of equal layers, exact; rules:
// models/offload_graph.h. 1 unit of time is 1 ms; rows whose durations are no whole number of picoseconds are skipped. max_resident and
// lookahead null: none. A row whose gate never opens has nothing simulated (0) and differs in whatever it gives; with no figures it agrees.
// InputError with the place: a row without another column or without any figure; a value of another type or below its range.
PublishedComparison compare_offload(const CsvTable& table);

}  // namespace stepsim
