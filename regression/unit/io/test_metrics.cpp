#include "io/report/metrics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "io/report/history.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using test::TemporaryFolder;

TrainLine line_at(std::int64_t step) {
  TrainLine t;
  t.step = step;
  t.tokens = static_cast<std::uint64_t>(step) * 1000;
  t.loss = 8.0 / static_cast<double>(step);
  t.grad_norm = 0.1;
  t.lr = 3e-4;
  t.step_s = 0.125;
  t.tokens_per_s = 8000;
  t.memory_peak_bytes = 123456789012;
  return t;
}

std::vector<json> lines_of(const TemporaryFolder& folder) {
  std::vector<json> lines;
  std::istringstream text(test::read_bytes(folder / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Metrics, TrainLineHasTheAgreedKeysAndNumbersThatReadBackEqual) {
  const TemporaryFolder folder;
  TrainLine t = line_at(7);
  t.loss = 0.1 + 0.2;
  t.grad_norm = std::numeric_limits<double>::denorm_min();
  t.lr = 1.0 / 3;
  t.tokens = 18'000'000'000'000'000'001u;
  t.mfu = 0.41;
  Metrics(folder.path(), false).train(t);
  const json line = lines_of(folder).at(0);
  std::set<std::string> keys;
  for (const auto& [key, value] : line.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"kind",
                                         "step",
                                         "time",
                                         "tokens",
                                         "loss",
                                         "grad_norm",
                                         "lr",
                                         "step_s",
                                         "tokens_per_s",
                                         "data_s",
                                         "forward_backward_s",
                                         "reduce_s",
                                         "optimizer_s",
                                         "refresh_wait_s",
                                         "gather_s",
                                         "preconditioner_age_max",
                                         "preconditioner_age_mean",
                                         "skipped_steps",
                                         "memory_peak_bytes",
                                         "tflops",
                                         "mfu",
                                         "energy_j"}));
  EXPECT_EQ(line["kind"], "train");
  EXPECT_EQ(line["loss"].get<double>(), t.loss);
  EXPECT_EQ(line["grad_norm"].get<double>(), t.grad_norm);
  EXPECT_EQ(line["lr"].get<double>(), t.lr);
  EXPECT_EQ(line["tokens"].get<std::uint64_t>(), t.tokens);
  EXPECT_EQ(line["memory_peak_bytes"].get<std::uint64_t>(), t.memory_peak_bytes);
  EXPECT_EQ(line["mfu"].get<double>(), 0.41);
  EXPECT_TRUE(line["energy_j"].is_null());
}

TEST(Metrics, AgesByStageAreListsAndReadBackAsSeries) {
  const TemporaryFolder folder;
  Metrics metrics(folder.path(), false);
  metrics.train(line_at(1), {{7, 2.5}, {3, 1.25}});
  metrics.train(line_at(2));
  const auto lines = lines_of(folder);
  EXPECT_EQ(lines[0]["preconditioner_age_max_by_stage"], json::parse("[7, 3]"));
  EXPECT_EQ(lines[0]["preconditioner_age_mean_by_stage"], json::parse("[2.5, 1.25]"));
  EXPECT_FALSE(lines[1].contains("preconditioner_age_max_by_stage"));
  const RunHistory history = read_history(folder.path());
  EXPECT_EQ(history.more.at("preconditioner_age_max_stage_0").at(0), 7);
  EXPECT_EQ(history.more.at("preconditioner_age_mean_stage_1").at(0), 1.25);
  EXPECT_TRUE(std::isnan(history.more.at("preconditioner_age_mean_stage_1").at(1)));
}

TEST(Metrics, WhatWorkersTakeIsSaidWhereThereAreSome) {
  const TemporaryFolder folder;
  Metrics metrics(folder.path(), false);
  TrainLine t = line_at(1);
  t.workers = WorkerNumbers{0.25, 1.5};
  metrics.train(t);
  metrics.train(line_at(2));
  const auto lines = lines_of(folder);
  EXPECT_EQ(lines[0]["refresh_copy_s"].get<double>(), 0.25);
  EXPECT_EQ(lines[0]["refresh_worker_s"].get<double>(), 1.5);
  EXPECT_FALSE(lines[1].contains("refresh_worker_s"));
}

TEST(Metrics, WhatDriftStartsIsSaidWhereItStartsRefreshes) {
  const TemporaryFolder folder;
  Metrics metrics(folder.path(), false);
  TrainLine t = line_at(1);
  t.refreshes = DriftNumbers{3, 0.25};
  metrics.train(t);
  t.refreshes = DriftNumbers{};
  metrics.train(t);
  metrics.train(line_at(3));
  const auto lines = lines_of(folder);
  EXPECT_EQ(lines[0]["refreshed_sides"], 3);
  EXPECT_EQ(lines[0]["basis_drift"], 0.25);
  EXPECT_EQ(lines[1]["refreshed_sides"], 0);
  EXPECT_TRUE(lines[1]["basis_drift"].is_null());
  EXPECT_FALSE(lines[2].contains("refreshed_sides"));
}

TEST(Metrics, TheLargestLoadIsSaidWhereThereAreExperts) {
  const TemporaryFolder folder;
  Metrics metrics(folder.path(), false);
  TrainLine t = line_at(1);
  t.load = LoadNumbers{1.375, 2};
  metrics.train(t);
  t.load = LoadNumbers{};
  metrics.train(t);
  metrics.train(line_at(3));
  const auto lines = lines_of(folder);
  EXPECT_EQ(lines[0]["expert_load_max"], 1.375);
  EXPECT_EQ(lines[0]["expert_load_layer"], 2);
  EXPECT_TRUE(lines[1]["expert_load_max"].is_null());
  EXPECT_TRUE(lines[1]["expert_load_layer"].is_null());
  EXPECT_FALSE(lines[2].contains("expert_load_max"));
}

TEST(Metrics, WhatMovesBetweenTiersIsSaidWhereThereAreSome) {
  const TemporaryFolder folder;
  Metrics metrics(folder.path(), false);
  TrainLine t = line_at(1);
  t.tiers = TierNumbers{4096, 8192, 3, 0.25};
  metrics.train(t);
  metrics.train(line_at(2));
  const auto lines = lines_of(folder);
  EXPECT_EQ(lines[0]["tier_read_bytes"], 4096);
  EXPECT_EQ(lines[0]["tier_written_bytes"], 8192);
  EXPECT_EQ(lines[0]["tier_waits"], 3);
  EXPECT_EQ(lines[0]["tier_wait_s"], 0.25);
  EXPECT_FALSE(lines[1].contains("tier_waits"));
}

TEST(Metrics, NotFiniteIsNull) {
  const TemporaryFolder folder;
  TrainLine t = line_at(1);
  t.loss = std::nan("");
  t.grad_norm = std::numeric_limits<double>::infinity();
  Metrics metrics(folder.path(), false);
  metrics.train(t);
  metrics.validation(1, 5, -t.grad_norm, std::nullopt, 0.5);
  const auto lines = lines_of(folder);
  EXPECT_TRUE(lines[0]["loss"].is_null());
  EXPECT_TRUE(lines[0]["grad_norm"].is_null());
  EXPECT_TRUE(lines[1]["loss"].is_null());
  EXPECT_TRUE(lines[1]["bits_per_byte"].is_null());
  EXPECT_TRUE(std::isnan(read_history(folder.path()).train.at(0).loss));
}

TEST(Metrics, EveryKindReadsBack) {
  const TemporaryFolder folder;
  const std::string odd = "a \"quoted\" \\ line\n\x01 \u00E9";
  {
    Metrics metrics(folder.path(), false);
    TrainLine t = line_at(1);
    t.data_s = 0.5, t.forward_backward_s = 0.25, t.reduce_s = 0.75, t.optimizer_s = 1.5, t.refresh_wait_s = 2.5,
    t.gather_s = 3.5;
    t.preconditioner_age_max = 11, t.preconditioner_age_mean = 5.5, t.skipped_steps = 12, t.tflops = 13.5,
    t.energy_j = 14.5;
    t.energy = {12.5, std::nullopt, 2.0, 7.0};
    t.step_tokens = 29;
    const std::vector<double> staleness = {2, 1, 0}, drift = {0.25, std::nan(""), 0}, cosine = {0.5, 0.75, 1};
    t.staleness = staleness, t.drift = drift, t.cosine = cosine;
    metrics.train(t);
    metrics.validation(1, 1000, 2.5, 1.25, 0.5);
    metrics.checkpoint(1, "checkpoints/step_1", 0.5, 2'000'000, "");
    metrics.checkpoint(1, "checkpoints/step_1", 0.5, 0, "disk full");
    metrics.event(1, "stop", odd);
    metrics.tensors(1, {{"w", 1, 2, 3}, {"v", std::nan(""), 0, 0}});
    metrics.loads(1, {0.5, 0.25}, {7, 9});
    metrics.updates(1, {{"w.*", "muon", "heads", "0-3", 5, 0.25, 1e-3, 0.5, 3e-4, {0.5, std::nan("")}},
                        {"v", "adamw", "elements", "0", 5, std::nullopt, 1, 2, 0, {}}});
    RunLine run;
    run.step = 1;
    run.hosts = {"a", "b"};
    run.command_line = odd;
    metrics.run(run);
    metrics.energy(1, {std::nullopt, {std::nullopt, 3.0, std::nullopt, 8.0}, 2, 10, "dram read"});
    metrics.rotations(1,
                      {{"q.*", 0.25, 1e-3, 2e-3, 4, 0.5, 1.5, {0.25, std::nan("")}}, {"v", 0.5, 0, 0, 3, 0.75, 1, {}}});
  }
  auto lines = lines_of(folder);
  ASSERT_EQ(lines.size(), 11u);
  for (auto& line : lines) {
    EXPECT_EQ(line["step"], 1);
    EXPECT_NEAR(line["time"].get<double>(), static_cast<double>(std::time(nullptr)), 60);
    line.erase("time");
  }
  EXPECT_EQ(lines[8]["kind"], "run");
  EXPECT_EQ(lines[8]["hosts"], (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(lines[8]["command_line"], odd);
  EXPECT_EQ(lines[7], json::parse(R"({"kind": "updates", "step": 1, "tensors": [{"pattern": "w.*", "rule": "muon",
    "split": "heads", "owner": "0-3", "calls": 5, "orthogonality_defect": 0.25, "update_rms": 0.001, "update_ratio": 0.5,
    "decay": 0.0003, "layers": [0.5, null]}, {"pattern": "v", "rule": "adamw", "split": "elements", "owner": "0",
    "calls": 5, "orthogonality_defect": null, "update_rms": 1.0, "update_ratio": 2.0, "decay": 0.0, "layers": []}]})"));
  EXPECT_EQ(lines[0]["energy_package_j"], 12.5);
  EXPECT_FALSE(lines[0].contains("energy_dram_j"));
  EXPECT_EQ(lines[0]["energy_device_j"], 2.0);
  EXPECT_EQ(lines[0]["watts"], 14.5 / lines[0]["step_s"].get<double>());
  EXPECT_EQ(lines[0]["joules_per_token"], 0.5);
  EXPECT_FALSE(lines[0].contains("processor_s"));  // only in the place of joules
  EXPECT_EQ(lines[9], json::parse(R"({"kind": "energy", "step": 1, "energy_j": null, "energy_dram_j": 3.0,
    "processor_s": 8.0, "domains": "dram read"})"));
  EXPECT_EQ(lines[10], json::parse(R"({"kind": "rotations", "step": 1, "tensors": [{"pattern": "q.*", "largest_q": 0.25,
    "defect": 0.001, "applied_defect": 0.002, "sigma_max": 4.0, "sigma_min": 0.5, "sigma_rms": 1.5,
    "layers": [0.25, null]}, {"pattern": "v", "largest_q": 0.5, "defect": 0.0, "applied_defect": 0.0, "sigma_max": 3.0,
    "sigma_min": 0.75, "sigma_rms": 1.0, "layers": []}]})"));
  EXPECT_TRUE(lines[2]["error"].is_null());
  EXPECT_EQ(lines[4]["detail"], odd);
  EXPECT_EQ(
      lines[5],
      json::parse(
          R"({"kind": "tensors", "step": 1, "tensors": {"w": {"weight_rms": 1, "update_rms": 2, "spectral_norm": 3},
    "v": {"weight_rms": null, "update_rms": 0, "spectral_norm": 0}}})"));
  EXPECT_EQ(lines[0]["drift"], json::parse("[0.25, null, 0]"));
  const RunHistory history = read_history(folder.path());
  EXPECT_EQ(history.name, std::filesystem::path(folder.path()).filename());
  EXPECT_EQ(history.bad_lines, 0u);
  const TrainLine& t = history.train.at(0);
  EXPECT_EQ(t.tokens, 1000u);
  EXPECT_EQ(t.data_s + t.forward_backward_s + t.reduce_s + t.optimizer_s + t.refresh_wait_s + t.gather_s, 9);
  EXPECT_EQ(t.preconditioner_age_max, 11);
  EXPECT_EQ(t.preconditioner_age_mean, 5.5);
  EXPECT_EQ(t.skipped_steps, 12);
  EXPECT_EQ(t.tflops, 13.5);
  EXPECT_FALSE(t.mfu.has_value());
  EXPECT_EQ(t.energy_j, 14.5);
  EXPECT_EQ(history.more.at("joules_per_token")[0], 0.5);
  EXPECT_EQ(history.start.back(), (std::pair<std::string, std::string>("energy", "dram read")));
  EXPECT_EQ(history.validation.at(0).bits_per_byte, 1.25);
  ASSERT_EQ(history.checkpoints.size(), 2u);
  EXPECT_EQ(history.checkpoints[0].bytes, 2e6);
  EXPECT_EQ(history.checkpoints[1].error, "disk full");
  ASSERT_EQ(history.notes.size(), 1u);
  EXPECT_EQ(history.notes[0].text, "stop: " + odd);
  EXPECT_EQ(history.tensors.names, (std::vector<std::string>{"w", "v"}));
  EXPECT_EQ(history.tensors.values[1][0].at(0), 2);
  ASSERT_EQ(history.loads.size(), 1u);
  EXPECT_EQ(history.loads[0].optimizer_s, (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(history.loads[0].planned, (std::vector<double>{7, 9}));
  ASSERT_EQ(history.stages.size(), 1u);
  EXPECT_EQ(history.stages[0].staleness, (std::vector<double>{2, 1, 0}));
  EXPECT_EQ(history.stages[0].drift[0], 0.25);
  ASSERT_EQ(history.updates.size(), 1u);
  ASSERT_EQ(history.updates[0].tensors.size(), 2u);
  const Metrics::UpdateLine& update = history.updates[0].tensors[0];
  EXPECT_EQ(update.pattern + update.rule + update.split + update.owner, "w.*muonheads0-3");
  EXPECT_EQ(update.calls, 5);
  EXPECT_EQ(update.orthogonality_defect, 0.25);
  EXPECT_EQ(update.update_rms + update.update_ratio + update.decay, 1e-3 + 0.5 + 3e-4);
  EXPECT_EQ(update.layers.at(0), 0.5);
  EXPECT_TRUE(std::isnan(update.layers.at(1)));
  EXPECT_FALSE(history.updates[0].tensors[1].orthogonality_defect.has_value());
  EXPECT_EQ(history.stages[0].cosine, (std::vector<double>{0.5, 0.75, 1}));
  EXPECT_TRUE(std::isnan(history.stages[0].drift[1]));
  EXPECT_EQ(history.more.at("staleness")[0], 2);  // the largest
  EXPECT_EQ(history.more.at("drift")[0], 0.25);
  ASSERT_EQ(history.rotations.size(), 1u);
  const Metrics::RotationLine& rotation = history.rotations[0].tensors.at(0);
  EXPECT_EQ(rotation.pattern, "q.*");
  EXPECT_EQ(rotation.largest_q + rotation.sigma_max + rotation.sigma_min + rotation.sigma_rms, 6.25);
  EXPECT_EQ(rotation.defect + rotation.applied_defect, 3e-3);
  EXPECT_EQ(rotation.layers.at(0), 0.25);
  EXPECT_EQ(history.more.at("rotation_norm")[0], 0.5);  // the largest of all, at the line of the step
  EXPECT_EQ(history.more.at("rotation_defect")[0], 1e-3);
  EXPECT_EQ(history.more.at("sigma_max")[0], 4);
  EXPECT_EQ(history.more.at("sigma_min")[0], 0.5);
}

TEST(Metrics, StartReadsBack) {
  const TemporaryFolder folder;
  RunLine run;
  run.step = 5, run.version = "1.2", run.commit = "abc", run.hosts = {"a", "a", "b"}, run.ranks = 3,
  run.started = "noon";
  Metrics(folder.path(), false).run(run);
  const auto start = read_history(folder.path()).start;
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"commit", "abc"}, {"hosts", "a, b"}, {"ranks", "3"}, {"started", "noon"}})
    EXPECT_NE(std::find(start.begin(), start.end(), std::pair(key, value)), start.end()) << key;
}

TEST(Metrics, LinesAreThereAtOnceAndAppended) {
  const TemporaryFolder folder;
  Metrics first(folder.path(), false);
  first.train(line_at(1));
  EXPECT_EQ(lines_of(folder).size(), 1u);
  Metrics second(folder.path(), false);
  second.train(line_at(2));
  EXPECT_EQ(lines_of(folder).size(), 2u);
}

TEST(Metrics, RewindSupersedes) {
  const TemporaryFolder folder;
  Metrics metrics(folder.path(), false);
  for (int step = 1; step <= 5; ++step) metrics.train(line_at(step));
  metrics.validation(5, 5000, 9, std::nullopt, 1);
  metrics.rewind(3, 3);
  TrainLine again = line_at(4);
  again.loss = 77;
  metrics.train(again);
  const RunHistory history = read_history(folder.path());
  ASSERT_EQ(history.train.size(), 4u);
  EXPECT_EQ(history.train[2].step, 3);
  EXPECT_EQ(history.train[3].loss, 77);
  EXPECT_TRUE(history.validation.empty());
  EXPECT_EQ(history.notes.at(0).kind, "rewind");
}

TEST(Metrics, CutLastLineIsCountedAndDoesNotSpoilTheNext) {
  const TemporaryFolder folder;
  Metrics(folder.path(), false).train(line_at(1));
  test::write_bytes(folder / "metrics.jsonl",
                    test::read_bytes(folder / "metrics.jsonl") + "{\"kind\":\"train\",\"step\":2,\"lo");
  EXPECT_EQ(read_history(folder.path()).bad_lines, 1u);
  Metrics(folder.path(), false).train(line_at(2));
  const RunHistory history = read_history(folder.path());
  EXPECT_EQ(history.bad_lines, 1u);
  ASSERT_EQ(history.train.size(), 2u);
  EXPECT_EQ(history.train[1].step, 2);
}

TEST(Metrics, OddLinesAreSkipped) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "metrics.jsonl",
                    "\n[1]\nnull\n{\"kind\":3}\n{\"kind\":\"train\",\"step\":\"x\",\"loss\":\"y\"}\n{\"kind\":"
                    "\"future\",\"step\":1}\n\xFF\n");
  const RunHistory history = read_history(folder.path());
  EXPECT_EQ(history.bad_lines, 4u);
  ASSERT_EQ(history.train.size(), 1u);
  EXPECT_TRUE(std::isnan(history.train[0].loss));
}

TEST(Metrics, Refused) {
  test::expect_error(ExitCode::cannot_create, {"metrics.jsonl"}, [] { Metrics("/nonexistent/folder", false); });
  test::expect_error(ExitCode::input_missing, {"/nonexistent/folder"}, [] { read_history("/nonexistent/folder"); });
}

TEST(TensorBoard, ChecksumIsCastagnoli) {  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}

template <class T>
T raw(const std::string& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

TEST(TensorBoard, RecordsAreFramedAndHoldTheScalars) {
  const TemporaryFolder folder;
  Metrics metrics(folder.path(), true);
  metrics.train(line_at(300));
  metrics.validation(300, 1, 2.5, std::nullopt, 1);
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) bytes = test::read_bytes(entry.path());
  }
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = raw<std::uint64_t>(bytes, at);
    const auto masked = [](std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8u; };
    ASSERT_EQ(raw<std::uint32_t>(bytes, at + 8), masked(crc32c(bytes.substr(at, 8))));
    records.push_back(bytes.substr(at + 12, length));
    ASSERT_EQ(raw<std::uint32_t>(bytes, at + 12 + length), masked(crc32c(records.back())));
    at += 16 + length;
  }
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].substr(9),
            "\x1A\x0D"
            "brain.Event:2");
  EXPECT_GT(raw<double>(records[0], 1), 1.7e9);
  EXPECT_EQ(records[1].substr(9, 3), "\x10\xAC\x02");  // field 2, varint 300
  // Event{5: Summary{1: Value{1: "val/loss", 2: 2.5f}}}
  EXPECT_EQ(records[2].substr(12), std::string("\x2A\x11\x0A\x0F\x0A\x08val/loss\x15\x00\x00\x20\x40", 19));
  EXPECT_NE(records[1].find("train/loss"), std::string::npos);
}

}  // namespace
}  // namespace sestina
