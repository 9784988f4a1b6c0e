// Sections of the deck as structs: defaults, rules between keys, what this version refuses.
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/methods/muon.hpp"
#include "regression/unit/core/keys_by_name.hpp"
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

TEST(Options, DefaultsWork) {
  const Options o = read("");
  EXPECT_EQ(o.run.name, "run");
  EXPECT_EQ(o.train.micro_batch, o.train.global_batch);
  EXPECT_EQ(o.data.sequence_length, std::min<std::int64_t>(1024, o.model.max_position_embeddings));
  EXPECT_EQ(o.optimizer.adamw.lr, o.schedule.lr);
  EXPECT_FALSE(o.machine.peak_tflops);
  EXPECT_EQ(o.checkpoint.keep, 3);
}

TEST(Options, EveryDefaultSurvivesTheDump) {
  Deck deck;
  deck.add_text(model +
                    "[run]\nsteps = 7\n[schedule]\nlr = 2e-3\n[[data.source]]\npath = "
                    "\"x.txt\"\n[[optimizer.group]]\nmatch = \"*norm*\"\nweight_decay = 0\n",
                "a.toml", "/folder");
  Options::read(deck);
  deck.finish();
  Deck again;
  again.add_text(deck.dump(), "dump", "/elsewhere");
  again.add_override("schedule.lr=3e-3");
  const Options o = Options::read(again);
  again.finish();
  EXPECT_EQ(o.optimizer.adamw.lr, 3e-3);  // follows schedule.lr still: a derived default is not frozen by the dump
  EXPECT_EQ(o.data.source.at(0).path, "/folder/x.txt");
  EXPECT_EQ(o.optimizer.group.at(0).weight_decay, 0.0);
  EXPECT_FALSE(o.optimizer.group.at(0).lr_multiplier);
  EXPECT_EQ(o.schedule.steps, 7);
}

TEST(Options, ReadsWhatIsThere) {
  const Options o = read(
      "[run]\nsteps = 100\nwalltime = \"01:00:00\"\non_nonfinite = \"skip\"\nspace = \"host\"\nseed = 9\n"
      "[train]\nglobal_batch = 12\nmicro_batch = 4\nprecision = \"bf16\"\nclip_norm = 0\n"
      "[schedule]\nkind = \"wsd\"\nwarmup_steps = 10\n[optimizer]\nlr = 5e-4\n[checkpoint]\nverify = \"full\"\n"
      "[[data.source]]\nformat = \"megatron\"\npath = \"/d/x\"\nweight = 0.5\n[[data.validation]]\npath = \"v.txt\"\n"
      "[parallel]\ndp = 1\ntp = 1\npp = 1\n");
  EXPECT_EQ(o.run.walltime, 3600);
  EXPECT_EQ(o.run.on_nonfinite, RunOptions::OnNonfinite::skip);
  EXPECT_EQ(o.run.space, RunOptions::Space::host);
  EXPECT_EQ(o.train.micro_batch, 4);
  EXPECT_EQ(o.train.precision, TrainOptions::Precision::bf16);
  EXPECT_EQ(o.schedule.decay_steps, 20);  // a fifth of the steps
  EXPECT_EQ(o.optimizer.adamw.lr, 5e-4);
  EXPECT_TRUE(o.checkpoint.verify_full);
  EXPECT_EQ(o.data.source.at(0).format, DataSource::Format::megatron);
  EXPECT_EQ(o.data.validation.at(0).path, "/folder/v.txt");
}

TEST(Options, SpikesAreOffUnlessTheDeckSaysSo) {
  EXPECT_EQ(read("[run]\nsteps = 1\n").run.on_spike, RunOptions::OnSpike::off);
  const RunOptions run =
      read("[run]\non_spike = \"rollback\"\nspike_window = 20\nspike_factor = 6.5\nmax_rollbacks = 1\n").run;
  EXPECT_EQ(run.on_spike, RunOptions::OnSpike::rollback);
  EXPECT_EQ(run.spike_window, 20);
  EXPECT_EQ(run.spike_factor, 6.5);
  EXPECT_EQ(run.max_rollbacks, 1);
  const std::string async = "[parallel]\npp = 2\nschedule = \"async-1f1b\"\n[run]\non_spike = ";
  expect_error(async + "\"recompute\"\n", "run.on_spike: needs the loss before the update");
  expect_error(async + "\"rollback\"\n", "run.on_spike: needs the loss before the update");
  EXPECT_EQ(read(async + "\"note\"\n").run.on_spike, RunOptions::OnSpike::note);
}

TEST(Options, MatrixOptimizersHaveTheirOwnKeysAndAScalarSection) {
  const Options o = read(
      "[schedule]\nlr = 3e-3\n[optimizer]\nkind = \"soap\"\nbeta1 = 0.8\nper_head = true\n[optimizer.scalar]\nlr = "
      "1e-3\n"
      "[optimizer.refresh]\nevery = 5\nstagger = true\n[[optimizer.group]]\nmatch = \"*up*\"\nkind = \"adamw\"\n");
  EXPECT_EQ(o.optimizer.lr, 3e-3);
  EXPECT_EQ(o.optimizer.adamw.lr, 1e-3);
  EXPECT_EQ(o.optimizer.weight_decay, 0.01);  // of SOAP
  ASSERT_TRUE(o.optimizer.matrix);
  EXPECT_EQ(number_of(*o.optimizer.matrix, "beta1"), 0.8);
  EXPECT_EQ(o.optimizer.matrix->refresh_every, 5);
  EXPECT_TRUE(o.optimizer.refresh.stagger);
  TensorSpec q{"model.layers.0.self_attn.q_proj.weight", 8, 8};
  q.heads = 2;
  TensorSpec up{"model.layers.0.mlp.up_proj.weight", 8, 8}, embedding{"model.embed_tokens.weight", 8, 8};
  embedding.role = Role::embedding;
  EXPECT_TRUE(is_matrix_optimized(q, o.optimizer));
  EXPECT_FALSE(is_matrix_optimized(up, o.optimizer));
  EXPECT_FALSE(is_matrix_optimized(embedding, o.optimizer));
  EXPECT_EQ(rates_of(up, o.optimizer).lr, 1e-3);
  ASSERT_EQ(matrix_parts(q, o.optimizer).size(), 2u);
  EXPECT_EQ(matrix_parts(q, o.optimizer)[1].row_begin, 4);
  expect_error("[optimizer]\nkind = \"soap\"\nmomentum = 0.9\n", "optimizer.momentum: unknown key");
  expect_error("[optimizer]\nkind = \"muon\"\n[optimizer.refresh]\nevery = 2\n", "has no preconditioner to refresh");
  expect_error("[optimizer]\nkind = \"muon\"\nns_set = \"aol\"\n", "allowed \"simple\"");
  expect_error("[optimizer]\nkind = \"muon\"\nns_set = \"cubic5\"\nns_steps = 4\n", "optimizer.ns_steps: not with");
  expect_error("[optimizer]\nkind = \"shampoo\"\nroot = \"newton\"\nexponent = 0.3\n", "optimizer.exponent: root");
  expect_error("[optimizer]\nkind = \"muon\"\n[parallel]\ncost = \"seconds\"\n", "machine.peak_tflops");
  expect_error("[optimizer]\nkind = \"muon\"\n[[optimizer.group]]\nmatch = \"*\"\nkind = \"soap\"\n",
               "allowed \"adamw\", \"muon\"");
}

TEST(Options, RefusesWhatThisVersionLacks) {
  expect_error("[optimizer]\nkind = \"rmsprop\"\n",
               "optimizer.kind: unknown value, got \"rmsprop\", allowed \"adamw\", \"lion\", \"ademamix\", "
               "\"schedule-free\", \"muon\"");
  expect_error("[optimizer.scalar]\nlr = 1e-3\n", "optimizer.scalar: applies to matrix optimizers only");
  expect_error("[optimizer.refresh]\nevery = 10\n", "optimizer.refresh: kind = \"adamw\" has no preconditioner");
  expect_error("[model.linear]\nform = \"sparse\"\n",
               "model.linear.form: unknown value, got \"sparse\", allowed \"dense\", \"poet-x\", \"lora\"");
}

TEST(Options, OwnCoefficientsTakeThePlaceOfASet) {
  const std::string muon = "[optimizer]\nkind = \"muon\"\n",
                    own = "ns_coefficients = [[2, -1.5, 0.5], [1.5, -0.5, 0]]\n";
  const auto steps = newton_schulz_steps(read(muon + own).optimizer.matrix->as<MuonOptions>());
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].a, 2);
  EXPECT_EQ(steps[0].b, -1.5);
  EXPECT_EQ(steps[1].c, 0);
  EXPECT_EQ(newton_schulz_steps(read(muon + own + "ns_steps = 2\n").optimizer.matrix->as<MuonOptions>()).size(), 2u);
  expect_error(muon + own + "ns_steps = 3\n", "optimizer.ns_steps: not with the 2 rows of ns_coefficients");
  expect_error(muon + own + "ns_set = \"cans\"\n", "optimizer.ns_coefficients: in the place of a set");
  expect_error(muon + "ns_coefficients = [[2, -1.5]]\n", "optimizer.ns_coefficients: ");
  expect_error(muon + "ns_set = \"cubic5\"\nns_steps = 4\n", "optimizer.ns_steps: not with ns_set \"cubic5\"");
  expect_error("[optimizer]\nkind = \"soap\"\n" + own, "optimizer.ns_coefficients: unknown key");
}

// The products that the gram form adds are in fp32.
TEST(Options, AnAutomaticFormIsPlainInBf16) {
  const auto form = [](const std::string& more) {
    const std::string muon = "[optimizer]\nkind = \"muon\"\nns_form = \"auto\"\n";
    return read(muon + more).optimizer.matrix->as<MuonOptions>().ns_form;
  };
  EXPECT_EQ(form(""), NewtonSchulzForm::automatic);
  EXPECT_EQ(form("ns_precision = \"bf16\"\n"), NewtonSchulzForm::plain);
  EXPECT_EQ(form("[train]\nprecision = \"bf16\"\n"), NewtonSchulzForm::plain);
  EXPECT_EQ(form("ns_precision = \"fp32\"\n[train]\nprecision = \"bf16\"\n"), NewtonSchulzForm::automatic);
}

TEST(Options, ShardsOfMuonHaveNoBalances) {
  for (const std::string kind : {"muon", "normuon", "adamuon"})
    for (const std::string shards : {"tp_update = \"distributed\"", "partition = \"groups\""}) {
      const std::string muon = "[parallel]\ntp = 2\n" + shards + "\n[optimizer]\nkind = \"" + kind + "\"\n";
      EXPECT_EQ(error_of(muon + "ns_form = \"auto\"\nns_coefficients = [[2, -1.5, 0.5]]\n"), "");
      for (const std::string key :
           {"ns_form = \"gram\"", "ns_norm = \"gram\"", "row_equilibration = true", "norm_snap = true"})
        expect_error(muon + key + "\n", "optimizer." + key.substr(0, key.find(' ')) + ": needs the whole matrix");
    }
}

// Blocks are cut where a side is longer; the published basis rotation rotates whole sides.
TEST(Options, SidesAboveMaxDimAreCutIntoBlocks) {
  for (const std::string kind : {"soap", "kl-soap", "kl-shampoo", "basis-rotation"}) {
    const std::string deck = "[optimizer]\nkind = \"" + kind + "\"\n";
    EXPECT_EQ(number_of(*read(deck).optimizer.matrix, "max_dim"), 10000) << kind;
    const Options o = read(deck + "max_dim = 128\n");
    for (const TensorSpec& spec : tensor_specs(o.model))
      if (is_matrix_optimized(spec, o.optimizer))
        EXPECT_EQ(static_cast<std::int64_t>(matrix_parts(spec, o.optimizer).size()),
                  (spec.rows + 127) / 128 * ((spec.cols + 127) / 128))
            << kind;
    expect_error(deck + "max_dim = 0\n", "optimizer.max_dim: ");
  }
  const std::string release = "[optimizer]\nkind = \"basis-rotation\"\ndialect = \"release\"\n";
  read(release);
  expect_error(release + "max_dim = 128\n",
               "optimizer.max_dim: optimizer.dialect = \"release\" rotates whole sides, and the longest is ");
}

TEST(Options, ReadsAnyNumberOfRanksButRunsOne) {
  const Options o = read(
      "[parallel]\ndp = 8\ntp = 4\npp = 2\npartition = \"start-index\"\ncost = \"seconds\"\nalpha = 0.5\n"
      "tp_update = \"blockwise\"\nbucket_elements = 1000\nmicro_group_bytes = 2000\nnode_size = "
      "4\n[machine]\npeak_tflops = 1\nmemory_bandwidth = 1\n");
  EXPECT_EQ(o.parallel.ranks(), 64);
  EXPECT_EQ(o.parallel.partition, ParallelOptions::Partition::start_index);
  EXPECT_EQ(o.parallel.cost, ParallelOptions::Cost::seconds);
  EXPECT_EQ(o.parallel.tp_update, ParallelOptions::TpUpdate::blockwise);
  EXPECT_EQ(o.parallel.bucket_elements, 1000);
  const Options usual = read("");
  EXPECT_EQ(usual.parallel.ranks(), 1);
  EXPECT_EQ(usual.parallel.partition, ParallelOptions::Partition::optimal);
  EXPECT_EQ(usual.parallel.cost, ParallelOptions::Cost::flops);

  Deck deck;
  deck.add_text("[model]\npreset = \"llama-8m\"\n[parallel]\ndp = 2\n", "a.toml", "");
  require_one_rank(deck, Options::read(deck).parallel);
  try {
    deck.finish();
    FAIL() << "two ranks were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_deck);
    EXPECT_NE(std::string(error.what()).find("a.toml:4:6: parallel.dp: this verb runs on one rank"), std::string::npos);
  }
}

TEST(Options, TensorParallelSizesMustFit) {
  expect_error("[parallel]\ntp = 3\n", "parallel.tp: does not divide model.num_attention_heads = 8");
  expect_error("[parallel]\npp = 9\n", "parallel.pp: more pipeline stages than layers");
  EXPECT_TRUE(tensor_parallel_defects(preset("llama-1b"), 8).empty());  // intermediate size 5461: in uneven parts
  ModelConfig odd = preset("llama-1b");
  odd.linear.form = "lora";
  ASSERT_EQ(tensor_parallel_defects(odd, 8).size(), 1u);
  EXPECT_EQ(
      tensor_parallel_defects(odd, 8)[0].what,
      "does not divide model.intermediate_size = 5461: ranks have equal parts of weights with model.linear.form = "
      "\"lora\"");
  odd.linear.form = "dense";
  odd.intermediate_size = 7;
  ASSERT_EQ(tensor_parallel_defects(odd, 8).size(), 1u);
  EXPECT_EQ(tensor_parallel_defects(odd, 8)[0].what, "leaves ranks none of model.intermediate_size = 7");
  EXPECT_TRUE(tensor_parallel_defects(preset("qwen3-32b"), 8).empty());
  EXPECT_TRUE(tensor_parallel_defects(preset("qwen3-32b"), 16).empty());  // each key head on two ranks
}

TEST(Options, MomentsInEightBitsLieInBlocksThatNobodyCuts) {
  const auto refused = [](const std::string& sizes, const std::string& optimizer) -> std::string {
    Deck deck;
    deck.add_text("[model]\nfamily = \"llama\"\nnum_hidden_layers = 1\nvocab_size = 256\nnum_attention_heads = 4\n" +
                      sizes + "[parallel]\ntp = 2\n[optimizer]\nstate_bits = 8\n" + optimizer,
                  "a.toml", "/folder");
    require_whole_blocks(deck, Options::read(deck));
    return complaint(deck);
  };
  const std::string wide = "hidden_size = 1024\nintermediate_size = 2048\n",
                    narrow = "hidden_size = 96\nintermediate_size = 160\n",
                    odd = "hidden_size = 24\nintermediate_size = 44\n";
  EXPECT_EQ(refused(wide, ""), "");
  const std::string said = refused(narrow, "");
  EXPECT_NE(
      said.find("optimizer.state_block: parallel.tp = 2 cuts rows of o_proj and down_proj into 48 and 80 columns"),
      said.npos)
      << said;
  EXPECT_NE(said.find("allowed 8, 16, or optimizer.state_bits = 32"), said.npos) << said;
  EXPECT_EQ(refused(narrow, "state_block = 16\n"), "");
  const std::string uneven = refused("hidden_size = 96\nintermediate_size = 161\n", "state_block = 8\n");
  EXPECT_NE(uneven.find("into 48 and 81 or 80 columns"), said.npos) << uneven;
  EXPECT_NE(refused(narrow, "state_block = 32\n"), "");
  EXPECT_NE(refused(odd, "state_block = 8\n").find("allowed optimizer.state_bits = 32"), said.npos);
  EXPECT_EQ(refused(narrow, "kind = \"muon\"\n"), "");
  EXPECT_NE(refused(narrow, "kind = \"muon\"\n[[optimizer.group]]\nmatch = \"*down*\"\nkind = \"adamw\"\n"), "");
  expect_error("[optimizer]\nstate_bits = 16\n", "optimizer.state_bits: no such width, got 16, allowed 32, 8");
  expect_error("[optimizer]\nstate_bits = 8\nstate_block = 48\n", "not a power of two");
  expect_error("[optimizer]\nstate_bits = 8\nstate_block = 4096\n", "optimizer.state_block");
}

TEST(Options, ProjectorsInFewerBits) {
  const auto read = [](const std::string& text) {
    Deck deck;
    deck.add_text("[optimizer]\n" + text, "a.toml", "/folder");
    return number_of(*Options::read(deck).optimizer.matrix, "projector_bits");
  };
  EXPECT_EQ(read("kind = \"galore\"\n"), 32);
  EXPECT_EQ(read("kind = \"galore\"\nprojector_bits = 4\n"), 4);
  EXPECT_EQ(read("kind = \"apollo\"\nprojector_bits = 8\n"), 8);
  expect_error("[optimizer]\nkind = \"galore\"\nprojector_bits = 16\n",
               "optimizer.projector_bits: no such width, got 16, allowed 32, 8, 4");
  expect_error("[optimizer]\nkind = \"soap\"\nprojector_bits = 8\n", "optimizer.projector_bits");
  expect_error(
      "[optimizer]\nkind = \"galore\"\nprojector_bits = 8\n[optimizer.refresh]\ntier = \"nvme\"\npath = \"p\"\n",
      "projectors in fewer bits stay in memory");
}

TEST(Options, LazyProjectors) {
  const std::string galore = "[optimizer]\nkind = \"galore\"\nlazy_cosine = 0.4\n";
  const auto read = [](const std::string& text) {
    Deck deck;
    deck.add_text(text, "a.toml", "/folder");
    return number_of(*Options::read(deck).optimizer.matrix, "lazy_cosine");
  };
  EXPECT_EQ(read("[optimizer]\nkind = \"galore\"\n"), 0);
  EXPECT_EQ(read(galore), 0.4);
  EXPECT_EQ(read(galore + "[optimizer.refresh]\nmode = \"async\"\n"), 0.4);
  expect_error("[optimizer]\nkind = \"galore\"\nlazy_cosine = 1.5\n", "optimizer.lazy_cosine");
  expect_error("[optimizer]\nkind = \"apollo\"\nlazy_cosine = 0.4\n", "optimizer.lazy_cosine");
  const std::string late = "[optimizer.refresh]\nmode = \"async\"\n";
  expect_error(galore + late + "every = \"auto\"\n", "optimizer.lazy_cosine: conflicts with optimizer.refresh.every");
  expect_error(galore + late + "visibility = \"eager\"\n",
               "optimizer.lazy_cosine: conflicts with optimizer.refresh.vis");
  expect_error(galore + "[optimizer.refresh]\nbudget = \"stage-aware\"\n",
               "optimizer.lazy_cosine: conflicts with optimizer.refresh.budget");
}

TEST(Options, WeightsInEightBits) {
  const std::string model = "[model]\npreset = \"llama-60m\"\n";
  const auto with = [&](const std::string& kind, const std::string& rest) {
    return model + "[optimizer]\nkind = \"" + kind + "\"\nweight_bits = 8\n" + rest;
  };
  for (const auto& [kind, group] : {std::pair{"galore", 256}, std::pair{"apollo", 128}}) {
    Deck deck;
    deck.add_text(with(kind, "[run]\nseed = 5\n"), "a.toml", "/folder");
    const Options options = Options::read(deck);
    deck.finish();
    EXPECT_EQ(options.model.linear.form, "int8") << kind;
    EXPECT_EQ(options.model.linear.group_size, group) << kind;
    EXPECT_EQ(options.optimizer.matrix->run_seed, 5u) << kind;
  }
  expect_error(with("muon", ""), "optimizer.weight_bits: unknown key");
  expect_error(model + "[optimizer]\nkind = \"galore\"\nweight_bits = 16\n", "optimizer.weight_bits: no such width");
  const std::string conflict = ": conflicts with optimizer.weight_bits = 8";
  expect_error(with("galore", "[parallel]\ntp = 2\n"), "parallel.tp" + conflict);
  expect_error(with("galore", "[parallel]\npp = 2\nschedule = \"async-1f1b\"\n"), "parallel.schedule" + conflict);
  expect_error(with("galore", "qk_clip = 30\n"), "optimizer.qk_clip" + conflict);
  expect_error(with("galore", "per_head = true\n"), "optimizer.per_head" + conflict);
  expect_error(with("galore", "[metrics]\ntensors_every = 5\n"), "metrics.tensors_every" + conflict);
  expect_error(with("galore", "[metrics]\nupdates_every = 5\n"), "metrics.updates_every" + conflict);
  expect_error(with("galore", "[model.linear]\nform = \"lora\"\n"), "model.linear.form" + conflict);
  expect_error(with("galore", "[optimizer.refresh]\nmode = \"async\"\nvisibility = \"eager\"\n"),
               "optimizer.refresh.visibility" + conflict);
  expect_error(with("galore", "[[optimizer.group]]\nmatch = \"*down_proj*\"\nkind = \"adamw\"\n"),
               "optimizer.weight_bits: a group gives model.layers.0.mlp.down_proj.weight/int8 to AdamW");
}

TEST(Options, RulesBetweenKeys) {
  expect_error("[train]\nglobal_batch = 8\nmicro_batch = 3\n",
               "train.micro_batch: does not divide train.global_batch, got 3, allowed a divisor of 8");
  expect_error("[schedule]\nsteps = 5\nwarmup_steps = 6\n",
               "schedule.warmup_steps: beyond the last step of the schedule");
  expect_error("[schedule]\nsteps = 10\nkind = \"wsd\"\nwarmup_steps = 6\ndecay_steps = 5\n",
               "schedule.decay_steps: warm-up and decay are longer");
  expect_error("[data]\nsequence_length = 100000\n", "data.sequence_length: longer than model.max_position_embeddings");
  expect_error("[run]\nstop_signals = [\"KILL\"]\n", "run.stop_signals: unknown signal \"KILL\"");
  expect_error("[run]\nname = \"a/b\"\n", "run.name: not the name of a folder");
  expect_error("[[data.source]]\nformat = \"text\"\n", "data.source.0.path: required");
  expect_error("[[optimizer.group]]\nlr_multiplier = 2\n", "optimizer.group.0.match: required");
  expect_error("[optimizer]\nbeta2 = 1.0\n", "optimizer.beta2: out of range, got 1.0, allowed >= 0 and < 1");
}

TEST(Options, TrainingNeedsStepsAndData) {
  Deck deck;
  deck.add_text(model, "a.toml", "");
  Options::read(deck);
  require_training_keys(deck);
  try {
    deck.finish();
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("run.steps: required"), std::string::npos) << what;
    EXPECT_NE(what.find("data.source: required"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace sestina
