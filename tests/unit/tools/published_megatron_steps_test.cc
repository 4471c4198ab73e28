// Rows are those of published/results.csv that the ids name, with the columns that a translation reads.
#include <gmock/gmock.h>

#include "tests/unit/tools/published_rows.h"
#include "tools/bridge_recipe.h"
#include "tools/published_results.h"

namespace stepsim {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

using Flags = std::map<std::string, std::string>;  // path -> value

struct Row {
  CsvTable table;
  RowCells cells() const { return RowCells(table, 0); }
};

// "id=B0546; model=llama3.1-405b"
Row row_of(std::string_view text) {
  CsvTable table{.file = "f", .head = {}, .rows = {{.line = 2, .column = 1, .cells = {}, .origins = {}}}};
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const std::size_t name = part.find_first_not_of(' '), equals = part.find('=');
    table.head.emplace_back(part.substr(name, equals - name));
    table.rows[0].cells.emplace_back(part.substr(equals + 1));
    table.rows[0].origins.push_back({.line = 2, .column = 1});
  }
  return {table};
}

PublishedStep translated(const std::string& text) { return megatron_results_step(row_of(text).cells()); }

Flags flags_of(const PublishedStep& step) {
  Flags flags;
  for (const FlagValue& flag : step.input.flags) EXPECT_TRUE(flags.emplace(flag.path, flag.value).second) << flag.path << " twice";
  return flags;
}

void expect_flags(const PublishedStep& step, const Flags& wanted) { EXPECT_EQ(flags_of(step), wanted); }

std::string untranslated(const std::string& text) {
  try {
    translated(text);
  } catch (const UntranslatedRow& row) {
    EXPECT_TRUE(row.allowed) << row.reason;
    return row.reason;
  }
  return "";
}

constexpr const char* kBridge = "source_repo=NVIDIA-NeMo/Megatron-Bridge; task=pretrain; cp=1; dp_mode=distributed optimizer (ZeRO-1); ";

TEST(PublishedMegatronSteps, DenseBridgeRow) {
  const PublishedStep step = translated(
      std::string(kBridge) +
      "id=B0546; source_date=26.06; model=llama3.1-405b; layers=126; hidden=16384; heads=128; kv_heads=8; seq_len=8192; gpu=GB200; "
      "n_gpus=256; precision=mxfp8; cuda_graph=None:None; micro_batch=1; grad_accum=384; global_batch=1536; tp=4; pp=16; vpp=8; ep=1; "
      "dp=4; "
      "sp=yes; recompute=none; act_offload=no");
  expect_flags(step, {{"framework.name", "megatron-bridge@26.06"},
                      {"model.name", "llama3.1-405b"},
                      {"hardware.name", "GB200"},
                      {"hardware.expandable_segments", "true"},
                      {"hardware.gpus", "256"},
                      {"training.sequence", "8192"},
                      {"training.micro_batch", "1"},
                      {"training.global_batch", "1536"},
                      {"training.precision", "mxfp8"},
                      {"training.low_precision_weights", "true"},
                      {"training.attention", "fused"},
                      {"training.loss", "fused"},
                      {"training.cuda_graph", "none"},
                      {"training.grad_dtype", "bf16"},
                      {"parallel.tp", "4"},
                      {"parallel.sequence_parallel", "true"},
                      {"parallel.tensor_overlap", "ring"},
                      {"parallel.pp", "16"},
                      {"parallel.virtual_stages", "8"},
                      {"parallel.pp_layout", "E|(t|)*126L"},
                      {"parallel.zero", "1"},
                      {"parallel.overlap_grad_reduce", "true"},
                      {"parallel.overlap_param_gather", "true"}});
  EXPECT_EQ(step.labels.at("source"), "Megatron-Bridge");
  EXPECT_EQ(step.labels.at("container"), "26.06");
  EXPECT_EQ(step.labels.at("flags known"), "yes");
  EXPECT_EQ(step.labels.at("weak"), "no");
  EXPECT_EQ(step.part, MeasuredPart::kStep);
}

TEST(PublishedMegatronSteps, Nvfp4HasNoOverlapOfTensorParallelism) {
  const Flags flags = flags_of(translated(
      std::string(kBridge) +
      "id=B0547; source_date=26.06; model=llama3.1-405b; layers=126; seq_len=8192; gpu=GB200; n_gpus=256; precision=nvfp4; "
      "cuda_graph=none:full_iteration; micro_batch=1; global_batch=1536; tp=4; pp=16; vpp=4; sp=yes; recompute=none; act_offload=no"));
  EXPECT_EQ(flags.at("parallel.tensor_overlap"), "none");
  EXPECT_EQ(flags.at("training.cuda_graph"), "none");  // implementation none
  EXPECT_EQ(flags.count("training.low_precision_weights"), 0u);
  EXPECT_EQ(flags.at("parallel.pp_layout"), "Et*1|(t*2|)*62t*1L");  // 126 + 2 layers on 64 chunks
}

constexpr const char* kDeepSeek =
    "model=deepseek-v3; layers=61; n_experts=256; top_k=8; moe_ffn=2048; seq_len=4096; n_gpus=256; precision=mxfp8; tp=1; sp=no; "
    "global_batch=4096; act_offload=no; ";

TEST(PublishedMegatronSteps, ExpertsBeforeTheWholeIterationGraph) {
  const PublishedStep step = translated(
      std::string(kBridge) + kDeepSeek +
      "id=B0598; source_date=26.04.01; gpu=GB200; cuda_graph=transformer_engine:['attn', 'moe_router', 'moe_preprocess']; micro_batch=1; "
      "pp=4; vpp=4; ep=64; recompute=selective; recompute_detail=mlp");
  const Flags flags = flags_of(step);
  EXPECT_EQ(flags.at("framework.name"), "megatron-bridge@26.04");
  EXPECT_EQ(flags.at("parallel.pp_layout"), "Et*4|(t*4|)*14t*1L");
  EXPECT_EQ(flags.at("parallel.dispatcher"), "hybridep");
  EXPECT_EQ(flags.at("training.cuda_graph"), "scopes");
  EXPECT_EQ(flags.at("model.multi_token_layers"), "1");
  EXPECT_EQ(flags.at("placement.recompute"), "selective");
  EXPECT_EQ(flags.at("placement.recompute_modules"), "mlp");
  EXPECT_EQ(flags.at("framework.fused_expert_mlp"), "false");
  EXPECT_EQ(flags.at("parallel.overlap_expert_exchange"), "false");
  EXPECT_EQ(flags.count("training.low_precision_attention"), 0u);
  EXPECT_EQ(step.labels.at("flags known"), "yes");
}

// accuracy.md C.2: 26.08's table hides its flags; v0.6.0 sets all of them.
TEST(PublishedMegatronSteps, ExpertsInTheWholeIterationGraph) {
  const PublishedStep step = translated(std::string(kBridge) + kDeepSeek +
                                        "id=B0510; source_date=26.08; gpu=GB300; micro_batch=1; pp=2; vpp=8; ep=32; recompute=none");
  const Flags flags = flags_of(step);
  EXPECT_EQ(flags.at("training.cuda_graph"), "full");
  EXPECT_EQ(flags.at("parallel.overlap_expert_exchange"), "true");
  EXPECT_EQ(flags.at("parallel.delay_weight_gradients"), "true");
  EXPECT_EQ(flags.at("framework.fused_expert_mlp"), "true");
  EXPECT_EQ(flags.at("training.low_precision_attention"), "true");
  EXPECT_EQ(flags.count("placement.recompute"), 0u);
  const Flags gb200 = flags_of(translated(std::string(kBridge) + kDeepSeek +
                                          "id=B0511; source_date=26.08; gpu=GB200; micro_batch=1; pp=4; vpp=4; ep=64; "
                                          "recompute=selective; recompute_detail=mla_up_proj"));
  EXPECT_EQ(gb200.at("training.cuda_graph"), "full");
  EXPECT_EQ(gb200.count("training.low_precision_attention"), 0u);  // C.2: DSv3 GB200 no
}

TEST(PublishedMegatronSteps, ExpertsOfUnknownFlags) {
  const PublishedStep step = translated(std::string(kBridge) + kDeepSeek +
                                        "id=B0748; source_date=25.11; gpu=GB300; micro_batch=1; pp=2; vpp=4; ep=32; recompute=unknown; "
                                        "notes=step time derived, table model \"DeepSeekV3 (w/o MTP)\"");
  const Flags flags = flags_of(step);
  EXPECT_EQ(flags.count("model.multi_token_layers"), 0u);
  EXPECT_EQ(flags.at("parallel.pp_layout"), "Et*8|(t*8|)*6t*5L");
  EXPECT_EQ(flags.at("placement.recompute_modules"), "mla_up_proj");
  EXPECT_EQ(step.labels.at("flags known"), "no");
  EXPECT_THAT(step.guesses, testing::Contains(HasSubstr("recompute mla_up_proj")));
  const PublishedStep first = translated(std::string(kBridge) + kDeepSeek +
                                         "id=B0782; source_date=25.09; gpu=GB200; micro_batch=1; pp=8; vpp=2; ep=64; recompute=unknown");
  EXPECT_EQ(flags_of(first).at("parallel.dispatcher"), "alltoall");
  EXPECT_EQ(flags_of(first).at("parallel.ep"), "32");  // 256 GPUs on 8 stages; 64 is printed
  EXPECT_EQ(first.labels.at("weak"), "yes");
}

TEST(PublishedMegatronSteps, ShardedWeightsWithOffloadedLayers) {
  const PublishedStep step = translated(
      "id=B0583; source_repo=NVIDIA-NeMo/Megatron-Bridge; source_date=26.04.01; task=pretrain; model=llama3-70b; layers=80; seq_len=8192; "
      "gpu=GB300; n_gpus=64; precision=fp8; cuda_graph=None:None; micro_batch=2; global_batch=256; tp=1; pp=1; cp=1; sp=no; "
      "recompute=none; "
      "dp_mode=Megatron-FSDP (optim_grads_params); act_offload=yes: TE layer-level activation offload, 20 layers");
  const Flags flags = flags_of(step);
  EXPECT_EQ(flags.at("parallel.zero"), "3");
  EXPECT_EQ(flags.at("placement.name"), "te");
  EXPECT_EQ(flags.at("placement.offload_layers"), "20");
  EXPECT_EQ(flags.at("training.fp8_recipe"), "current");
  EXPECT_EQ(flags.count("parallel.overlap_grad_reduce"), 0u);
}

TEST(PublishedMegatronSteps, GptOssRows) {
  const std::string common = std::string(kBridge) +
                             "model=gpt-oss-120b; layers=36; n_experts=128; top_k=4; moe_ffn=2880; seq_len=4096; n_gpus=64; tp=1; pp=1; "
                             "micro_batch=4; global_batch=1280; sp=no; act_offload=no; ";
  const Flags bf16 = flags_of(translated(common + "id=B0602; source_date=26.04.01; gpu=GB200; precision=bf16; cuda_graph=None:None; ep=64; "
                                                  "recompute=selective; recompute_detail=layernorm,moe_act"));
  EXPECT_EQ(bf16.at("parallel.overlap_expert_exchange"), "true");
  EXPECT_EQ(bf16.at("parallel.dispatcher"), "hybridep");
  EXPECT_EQ(bf16.at("framework.eager_expert_activation"), "true");
  EXPECT_EQ(bf16.at("placement.recompute_modules"), "layernorm,moe_act");
  const Flags b300 = flags_of(translated(common + "id=B0555; source_date=26.06; gpu=B300; precision=mxfp8; ep=8; recompute=none; "
                                                  "cuda_graph=transformer_engine:['attn', 'moe_router', 'moe_preprocess']"));
  EXPECT_EQ(b300.at("training.cuda_graph"), "scopes");
  EXPECT_EQ(b300.at("framework.fused_expert_mlp"), "false");
  EXPECT_EQ(b300.at("framework.eager_expert_activation"), "true");
  const PublishedStep old = translated(common +
                                       "id=B0731; source_date=26.02; gpu=B200; precision=bf16; cuda_graph=None:None; ep=64; "
                                       "recompute=selective; recompute_detail=layernorm,moe_act");
  EXPECT_EQ(flags_of(old).at("parallel.dispatcher"), "alltoall");
  EXPECT_EQ(old.labels.at("weak"), "yes");  // experts over nodes of 8
}

TEST(PublishedMegatronSteps, TuningPacksSamples) {
  const PublishedStep step = translated(
      "id=B0582; source_repo=NVIDIA-NeMo/Megatron-Bridge; source_date=26.06; task=lora; model=llama3-70b; layers=80; seq_len=1000; "
      "gpu=H100; "
      "n_gpus=8; precision=fp8; cuda_graph=None:None; micro_batch=1; global_batch=32; tp=2; pp=4; vpp=20; cp=1; sp=yes; recompute=none; "
      "dp_mode=distributed optimizer (ZeRO-1); act_offload=no");
  const Flags flags = flags_of(step);
  EXPECT_EQ(flags.at("training.packed"), "256,256,488");  // adds up to 1000
  EXPECT_EQ(flags.at("training.trainable"), "lora(r=16,targets=qkv)");
  EXPECT_EQ(step.labels.at("weak"), "yes");
}

TEST(PublishedMegatronSteps, CardsAreFilledFromWhatTheyName) {
  const std::string card = std::string(kBridge) +
                           "model=qwen3-30b-a3b; layers=48; n_experts=128; top_k=8; moe_ffn=768; precision=fp8_mx; recompute=unknown; "
                           "act_offload=unknown; source_path=examples/model_verification_cards/qwen3-30b-a3b/card.yaml; ";
  const PublishedStep step =
      translated(card + "id=B0906; source_date=2026-07-23; gpu=GB200; n_gpus=8; step_time_s=6.50112; tokens_per_s_gpu=40322.898");
  const Flags flags = flags_of(step);
  EXPECT_EQ(flags.at("framework.name"), "megatron-bridge@26.08");
  EXPECT_EQ(flags.at("training.micro_batch"), "4");
  EXPECT_EQ(flags.at("training.global_batch"), "512");  // 40322.898 x 6.50112 x 8 / 4096
  EXPECT_EQ(flags.at("parallel.ep"), "8");
  EXPECT_EQ(flags.at("training.cuda_graph"), "full");
  EXPECT_EQ(step.labels.at("flags known"), "no");
  EXPECT_EQ(step.labels.at("weak"), "yes");
}

TEST(PublishedMegatronSteps, NeMoRow) {
  const PublishedStep step = translated(
      "id=B0940; source_repo=NVIDIA/NeMo; source_date=2024-09-09; task=pretrain; model=llama3-70b; layers=80; seq_len=8192; gpu=H100-80GB; "
      "n_gpus=64; precision=fp8-TE; attention_kernel=TE fused/flash; micro_batch=1; grad_accum=64; global_batch=128; tp=4; pp=4; vpp=5; "
      "ep=1; "
      "cp=2; dp=2; sp=yes; dp_mode=distributed optimizer; recompute=unknown; act_offload=unknown");
  expect_flags(step, {{"framework.name", "nemo@24.07"},
                      {"model.name", "llama3-70b"},
                      {"hardware.name", "H100-80GB"},
                      {"hardware.gpus", "64"},
                      {"training.sequence", "8192"},
                      {"training.micro_batch", "1"},
                      {"training.global_batch", "128"},
                      {"training.precision", "fp8"},
                      {"training.fp8_recipe", "delayed"},
                      {"training.low_precision_weights", "true"},
                      {"training.attention", "fused"},
                      {"parallel.tp", "4"},
                      {"parallel.sequence_parallel", "true"},
                      {"parallel.tensor_overlap", "ring"},
                      {"parallel.pp", "4"},
                      {"parallel.virtual_stages", "5"},
                      {"parallel.cp", "2"},
                      {"parallel.zero", "1"},
                      {"parallel.overlap_grad_reduce", "true"},
                      {"parallel.overlap_param_gather", "true"}});
}

TEST(PublishedMegatronSteps, TuningOfNeMoHasVirtualStagesThatItsTableDoesNotPrint) {
  const PublishedStep step = translated(
      "id=B0942; source_repo=NVIDIA/NeMo; source_date=2024-09-09; task=sft; model=llama2-13b; layers=40; seq_len=4096; gpu=H100-80GB; "
      "n_gpus=8; precision=fp8-TE; micro_batch=1; global_batch=32; tp=1; pp=4; vpp=; cp=1; dp=2; sp=no; dp_mode=distributed optimizer; "
      "recompute=unknown; act_offload=unknown");
  EXPECT_EQ(flags_of(step).at("parallel.virtual_stages"), "10");
  EXPECT_THAT(step.guesses, testing::Contains(HasSubstr("virtual stages of one layer")));
  EXPECT_EQ(step.labels.at("weak"), "yes");
}

TEST(PublishedMegatronSteps, SimuMaxRowsAreCutModels) {
  const PublishedStep step = translated(
      "id=B0240; source_repo=MooreThreads/SimuMax; source_date=2026-04-24; task=pretrain; model=deepseek-v3; layers=4; n_experts=256; "
      "top_k=8; moe_ffn=2048; seq_len=4096; gpu=B200-SXM; n_gpus=8; precision=bf16; micro_batch=1; grad_accum=4; global_batch=16; tp=1; "
      "pp=2; "
      "cp=1; ep=4; dp=4; sp=no; dp_mode=distributed optimizer (ZeRO-1), no overlap; recompute=none; "
      "unknowns=cross-entropy fusion on (\"cef\"), deepseekv3 rows use dense_layers=1");
  expect_flags(step, {{"framework.name", "megatron-simumax@2026-01"},
                      {"model.name", "deepseek-v3"},
                      {"model.layers", "4"},
                      {"hardware.name", "B200-SXM"},
                      {"hardware.gpus", "8"},
                      {"training.sequence", "4096"},
                      {"training.micro_batch", "1"},
                      {"training.global_batch", "16"},
                      {"training.precision", "bf16"},
                      {"training.attention", "flash"},
                      {"training.loss", "fused"},
                      {"parallel.pp", "2"},
                      {"parallel.ep", "4"},
                      {"parallel.dispatcher", "alltoall"},
                      {"parallel.zero", "1"},
                      {"parallel.overlap_grad_reduce", "false"},
                      {"parallel.overlap_param_gather", "false"}});
  EXPECT_EQ(step.dense_layers, 1);
}

TEST(PublishedMegatronSteps, PaperRows) {
  const std::string common =
      "source_repo=arXiv 2205.05198; source_date=2022-05; task=pretrain; seq_len=2048; gpu=A100-80GB; precision=fp16; cp=1; ep=1; "
      "act_offload=no; attention_kernel=unfused softmax (materialised s x s), dropout on; ";
  const PublishedStep step =
      translated(common +
                 "id=B0130; category=multi_node; model=turing-530b; layers=105; n_gpus=280; micro_batch=1; grad_accum=280; "
                 "global_batch=280; tp=8; pp=35; vpp=3; dp=1; sp=yes; recompute=selective; recompute_detail=core attention (QK^T)");
  expect_flags(step, {{"framework.name", "megatron-lm@2022-05"},
                      {"model.name", "turing-530b"},
                      {"hardware.name", "A100-80GB"},
                      {"hardware.gpus", "280"},
                      {"training.sequence", "2048"},
                      {"training.micro_batch", "1"},
                      {"training.global_batch", "280"},
                      {"training.precision", "fp16"},
                      {"training.attention", "unfused"},
                      {"parallel.tp", "8"},
                      {"parallel.sequence_parallel", "true"},
                      {"parallel.pp", "35"},
                      {"parallel.virtual_stages", "3"},
                      {"parallel.zero", "0"},
                      {"placement.recompute", "selective"},
                      {"placement.recompute_modules", "core_attn"}});
  const PublishedStep layer = translated(common +
                                         "id=B0136; category=single_layer; model=megatron-22b; layers=1; n_gpus=8; micro_batch=4; "
                                         "global_batch=4; tp=8; pp=1; dp=1; sp=no; recompute=full");
  EXPECT_EQ(layer.part, MeasuredPart::kLayer);
  EXPECT_EQ(flags_of(layer).at("model.layers"), "1");
  EXPECT_EQ(flags_of(layer).at("placement.recompute"), "full");
}

TEST(PublishedMegatronSteps, LayersOfExpertsAlone) {
  const PublishedStep step = translated(
      "id=B1245; category=single_layer; source_repo=NVIDIA/Megatron-LM; task=MoE layer fwd+bwd; model=deepseek-moe-layer-proxy; layers=1; "
      "hidden=7168; heads=8; n_experts=32; top_k=8; moe_ffn=2048; seq_len=4096; gpu=H100-80GB; n_gpus=8; precision=fp8 blockwise; "
      "micro_batch=1; tp=1; pp=1; cp=1; ep=8; dp=8; recompute=none; act_offload=no; notes=dispatcher deepep, MoE layer only");
  const Flags flags = flags_of(step);
  EXPECT_EQ(step.part, MeasuredPart::kLayer);
  EXPECT_EQ(flags.at("parallel.dispatcher"), "deepep");
  EXPECT_EQ(flags.at("training.fp8_recipe"), "blockwise");
  EXPECT_EQ(step.labels.at("source"), "Megatron-LM MoE layer");
  EXPECT_THAT(step.dimensions, IsEmpty());  // the catalog's
}

TEST(PublishedMegatronSteps, MegatronsOwnCases) {
  const Flags flags = flags_of(translated(
      "id=B1570; category=ci_golden_large; source_repo=NVIDIA/Megatron-LM; task=pretrain; layers=16; hidden=1024; heads=32; "
      "model=mcore-ci:gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed; n_experts=32; top_k=4; moe_ffn=1024; seq_len=4096; "
      "gpu=H100-80GB; n_gpus=8; precision=bf16; attention_kernel=unfused; micro_batch=4; global_batch=32; tp=2; pp=2; vpp=4; cp=1; "
      "ep=4; sp=yes; dp_mode=distributed optimizer; recompute=none; act_offload=no"));
  EXPECT_EQ(flags.at("training.attention"), "unfused");
  EXPECT_EQ(flags.at("parallel.expert_tp"), "1");
  EXPECT_EQ(flags.at("parallel.overlap_grad_reduce"), "true");
  EXPECT_EQ(flags.at("parallel.virtual_stages"), "4");
}

TEST(PublishedMegatronSteps, RowsThatAreNoJobs) {
  EXPECT_EQ(untranslated(std::string(kBridge) + "id=B0851; source_date=2026-08-04; model=glm5-2; gpu=GB200; n_gpus=192; precision=bf16; "
                                                "micro_batch=1; seq_len=4096; pp=6; recompute=unknown"),
            "dimensions of glm5-2 are unknown");
  EXPECT_EQ(untranslated("id=B0985; source_repo=NVIDIA/NeMo; source_date=25.04; task=pretrain; model=llama3-8b; gpu=B200; n_gpus=32; "
                         "precision=fp8-TE; seq_len=32768; tp=1; pp=1; cp=2; recompute=unknown"),
            "the micro-batch is not stated");
}

TEST(BridgeLayout, CountsEmbeddingAndLossWhereLayersAreUneven) {
  EXPECT_EQ(bridge_layout("llama3-70b", 80, 40), "");
  EXPECT_EQ(bridge_layout("qwen3-235b-a22b", 94, 24), "Et*3|(t*4|)*22t*3L");
  EXPECT_EQ(bridge_layout("qwen3-235b-a22b", 94, 8), "Et*11|(t*12|)*6t*11L");
  EXPECT_EQ(bridge_layout("deepseek-v3", 61, 32), "Et|(tt|)*30L");
  EXPECT_EQ(bridge_layout("deepseek-v3", 61, 4), "Et*16|(t*16|)*2t*13L");
  EXPECT_EQ(bridge_layout("deepseek-v3", 61, 1), "");
  for (const auto& [model, layers, chunks] :
       {std::tuple("qwen3-235b-a22b", 94, 24), std::tuple("llama3.1-405b", 126, 128), std::tuple("deepseek-v3", 61, 16)}) {
    const StageLayout layout = stage_layout(layers, chunks, 1, {.layout = bridge_layout(model, layers, chunks)});
    EXPECT_EQ(layout.parts.size(), static_cast<std::size_t>(chunks)) << model;
  }
}

// Of every row of quality A or B of these sources.
TEST(PublishedMegatronSteps, RowsOfTheSharedTableAreJobs) {
  const std::optional<CsvTable> table = shared_table("published/results.csv");
  if (!table) GTEST_SKIP() << "no published/results.csv";
  std::map<std::string, std::string> refused;
  std::size_t jobs = 0;
  for (std::size_t row = 0; row < table->rows.size(); ++row) {
    const RowCells cells(*table, row);
    const std::string_view quality = cells.text("quality");
    if (result_source(cells) != ResultSource::kMegatron || (quality != "A" && quality != "B") || !cells.has("step_time_s")) continue;
    const std::string id(cells.text("id"));
    try {
      const PublishedStep step = results_step(cells);
      resolve_job(step.input);
      ++jobs;
    } catch (const UntranslatedRow& skip) {
      if (!skip.allowed) refused[id] = skip.reason;
    } catch (const std::exception& error) {
      refused[id] = error.what();
    }
  }
  EXPECT_THAT(refused, IsEmpty());
  EXPECT_EQ(jobs, 242u);  // of 278 with a step time: 35 hybrids with state-space layers, and DeepSeek-V4, whose dimensions are unknown
}

}  // namespace
}  // namespace stepsim
