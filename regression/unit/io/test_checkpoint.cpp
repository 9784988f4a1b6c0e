// Checkpoints: round trip, order of writing, keep-k, and refusal of everything damaged.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

#include <bit>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "io/store/digest.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

struct Checkpoint : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / ("sestina-checkpoint-" + std::to_string(::getpid()));
  std::vector<float> weights = std::vector<float>(7 * 5), moment = std::vector<float>(11);
  std::vector<std::uint16_t> half = std::vector<std::uint16_t>(4 * 3 * 2);
  std::vector<std::int64_t> counter = {-5};
  CheckpointOptions options;

  Checkpoint() {
    std::iota(weights.begin(), weights.end(), 0.5f);
    std::iota(moment.begin(), moment.end(), -3.f);
    std::iota(half.begin(), half.end(), std::uint16_t{0x3f80});
    weights[3] = -0.f;
    const std::uint32_t signalling = 0x7f812345;  // a NaN whose payload must survive
    std::memcpy(&weights[4], &signalling, 4);
    fs::remove_all(dir);
    fs::create_directories(dir);
  }
  ~Checkpoint() override { fs::remove_all(dir); }

  std::vector<StateField> fields() {
    return {
        {"/model/model.layers.0.mlp.up_proj.weight", DType::f32, {7, 5}, 0, 7, 0, 0, weights.data(), false, true, 3},
        {"/optimizer/model.norm.weight/m", DType::f32, {11}, 0, 11, 0, 0, moment.data(), false, true, 9},
        {"/optimizer/model.norm.weight/cube", DType::bf16, {4, 3, 2}, 0, 4, 0, 0, half.data(), false, true, 0},
        {"/optimizer/model.norm.weight/step", DType::i64, {1}, 0, 1, 0, 0, counter.data(), false, true, 0},
        {"/optimizer/empty/m", DType::f32, {0, 6}, 0, 0, 0, 0, nullptr, false, true, 0}};
  }
  RunState run(std::int64_t step) {
    RunState state;
    state.step = step;
    state.sample = 123;
    state.tokens = std::uint64_t{1} << 60;
    state.seed = 0xffffffffffffffffu;
    state.deck = "[run]\nname = \"gr\xc3\xbc\xc3\x9f\"\n";
    state.tokenizer_digest = "abc";
    state.instruction_set = "avx2";
    state.loss = 0.1 + 0.2;
    state.extra = "{\"skipped\": 2}";
    return state;
  }
  // Saves the given steps in turn; returns the last event.
  CheckpointWriter::Event save(const std::vector<std::int64_t>& steps) {
    CheckpointWriter writer(dir.string(), options);
    for (std::int64_t step : steps) {
      take_snapshot(fields(), run(step), {}, writer.slot());
      writer.save();
    }
    writer.wait();
    return writer.take_events().back();
  }
  fs::path at(std::int64_t step) { return dir / "checkpoints" / step_folder(step); }
  static void flip(const fs::path& file, std::uint64_t offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const char old = static_cast<char>(stream.get());
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(old ^ 0x10));
  }
  // The message with which the reader refuses the checkpoint; "" if it does not.
  static std::string refusal(const fs::path& path, bool full = false) {
    try {
      CheckpointReader reader(path.string(), full);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data) << error.what();
      return error.what();
    }
  }
};

TEST_F(Checkpoint, RoundTripIsBitwise) {
  const auto event = save({1000});
  ASSERT_EQ(event.error, "");
  EXPECT_EQ(event.path, at(1000).string());
  const CheckpointReader reader(event.path, true);
  const RunState back = reader.run(), before = run(1000);
  EXPECT_EQ(back.step, 1000);
  EXPECT_EQ(back.sample, before.sample);
  EXPECT_EQ(back.tokens, before.tokens);
  EXPECT_EQ(back.seed, before.seed);
  EXPECT_EQ(back.deck, before.deck);
  EXPECT_EQ(back.loss, before.loss);
  EXPECT_EQ(back.extra, before.extra);
  EXPECT_EQ(back.instruction_set, before.instruction_set);
  EXPECT_EQ(back.tokenizer_digest, before.tokenizer_digest);
  ASSERT_EQ(reader.entries().size(), fields().size());
  EXPECT_EQ(reader.entries()[1].version, 9u);
  EXPECT_FALSE(reader.has("/model/other"));
  for (const StateField& field : fields()) {
    ASSERT_TRUE(reader.has(field.path));
    std::vector<std::byte> got(field.bytes() + 1, std::byte{0x77});
    reader.read(field, got.data());
    EXPECT_TRUE(std::equal(got.begin(), got.end() - 1, static_cast<const std::byte*>(field.data))) << field.path;
    EXPECT_EQ(got.back(), std::byte{0x77});
  }
  EXPECT_EQ(fs::read_symlink(dir / "checkpoints/latest"), step_folder(1000));
}

TEST_F(Checkpoint, ReadsSlabsAcrossShards) {
  // Two ranks' shards put together by hand, cut at row 3.
  const fs::path folder = at(5);
  fs::create_directories(folder);
  StateField low = fields()[0], high = low;
  low.row_end = 3;
  high.row_begin = 3;
  high.data = weights.data() + 15;
  Manifest manifest;
  manifest.run = run(5);
  manifest.ranks = manifest.dp = 2;
  manifest.files = {{"shard_00000.h5", 0, ""}, {"shard_00001.h5", 0, ""}, {"global.h5", 0, ""}};
  manifest.tensors = write_shard((folder / "shard_00000.h5").string(), 0, {low}, manifest.run);
  manifest.tensors[0].pieces.push_back(
      write_shard((folder / "shard_00001.h5").string(), 1, {high}, manifest.run)[0].pieces[0]);
  write_global((folder / "global.h5").string(), manifest);
  for (ManifestFile& file : manifest.files) {
    const FileDigest digest = digest_file((folder / file.name).string());
    file.size = digest.size;
    file.xxh3_128 = digest.xxh3_128;
  }
  write_durably((folder / "manifest.json").string(), manifest_text(manifest));
  EXPECT_EQ(verify_checkpoint(folder.string(), true), "");
  const CheckpointReader reader(folder.string(), false);
  for (std::int64_t begin = 0; begin <= 7; ++begin)
    for (std::int64_t end = begin; end <= 7; ++end) {
      StateField slab = fields()[0];
      slab.row_begin = begin;
      slab.row_end = end;
      std::vector<float> got(static_cast<std::size_t>((end - begin) * 5));
      reader.read(slab, got.data());
      const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(bits(got[i]), bits(weights[begin * 5 + i])) << begin << " " << end;
    }
  // Swapped shards are named (both have the same size here, so the digest has to tell).
  fs::rename(folder / "shard_00000.h5", folder / "x");
  fs::rename(folder / "shard_00001.h5", folder / "shard_00000.h5");
  fs::rename(folder / "x", folder / "shard_00001.h5");
  EXPECT_NE(refusal(folder).find("shard_00000.h5"), std::string::npos);
}

TEST_F(Checkpoint, RefusesAnotherShapeOrType) {
  save({1});
  const CheckpointReader reader(at(1).string(), false);
  std::vector<float> out(64);
  StateField field = fields()[0];
  field.shape = {5, 7};
  EXPECT_THROW(reader.read(field, out.data()), Error);
  field = fields()[0];
  field.dtype = DType::i32;
  EXPECT_THROW(reader.read(field, out.data()), Error);
  field.path = "/model/unknown";
  EXPECT_THROW(reader.read(field, out.data()), Error);
}

TEST_F(Checkpoint, AnyFlippedBitIsRefusedAndTheTensorNamed) {
  save({1});
  const Manifest manifest = load_manifest(at(1).string());
  const ManifestPiece& piece = manifest.tensors[0].pieces[0];
  const fs::path shard = at(1) / "shard_00000.h5";
  flip(shard, piece.offset + 17);
  const std::string message = refusal(at(1));
  EXPECT_NE(message.find("shard_00000.h5"), std::string::npos) << message;
  EXPECT_NE(message.find(manifest.tensors[0].path), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(piece.offset)), std::string::npos) << message;
  EXPECT_NE(message.find(manifest.files[0].xxh3_128), std::string::npos) << message;
  flip(shard, piece.offset + 17);
  EXPECT_EQ(refusal(at(1)), "");
  const std::uint64_t size = fs::file_size(shard);
  for (std::uint64_t offset = 0; offset < size; offset += 997) {  // metadata, padding and data
    flip(shard, offset);
    ASSERT_NE(refusal(at(1)), "") << offset;
    flip(shard, offset);
  }
  flip(at(1) / "global.h5", 100);
  EXPECT_NE(refusal(at(1)).find("global.h5"), std::string::npos);
}

// What a poll throws is not taken for damage: a stop in the middle of verifying must not make a run pass a good one
// over.
TEST_F(Checkpoint, VerifyingCanBeEnded) {
  save({1});
  struct Ended {};
  const Poll end = [] { throw Ended(); };
  const std::string path = at(1).string();
  EXPECT_THROW(verify_checkpoint(path, false, end), Ended);
  EXPECT_THROW(verify_part(path, 0, 2, false, end), Ended);
  EXPECT_THROW(newest_complete(dir.string(), false, {}, end), Ended);
  EXPECT_THROW(CheckpointReader(path, Verify::all, end), Ended);
  const CheckpointReader reader(path, Verify::opened, end);
  EXPECT_THROW(reader.read(fields()[0], weights.data()), Ended);
  EXPECT_EQ(newest_complete(dir.string(), false, {}, [] {}), path);
}

TEST_F(Checkpoint, FilesCutMissingOrExtra) {
  save({1});
  const fs::path shard = at(1) / "shard_00000.h5";
  fs::copy_file(shard, at(1) / "shard_00007.h5");
  EXPECT_NE(refusal(at(1)).find("shard_00007.h5: is not listed"), std::string::npos);
  fs::remove(at(1) / "shard_00007.h5");
  const auto size = fs::file_size(shard);
  fs::resize_file(shard, size - 1);
  EXPECT_NE(refusal(at(1)).find("the manifest says " + std::to_string(size)), std::string::npos);
  fs::remove(shard);
  EXPECT_NE(refusal(at(1)).find("shard_00000.h5: is missing"), std::string::npos);
}

TEST_F(Checkpoint, ManifestEmptyCutOrChanged) {
  save({1});
  const fs::path path = at(1) / "manifest.json";
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  for (std::size_t size = 0; size < text.size(); size += 1 + size / 40) {
    fs::resize_file(path, size);
    ASSERT_NE(refusal(at(1)), "") << size;
    std::ofstream(path, std::ios::binary) << text;
  }
  for (std::size_t i = 0; i < text.size(); i += 13) {
    flip(path, i);
    ASSERT_NE(refusal(at(1)), "") << i;
    flip(path, i);
  }
  EXPECT_EQ(refusal(at(1), true), "");
  fs::remove(path);
  EXPECT_NE(refusal(at(1)).find("not complete"), std::string::npos);
}

TEST_F(Checkpoint, MissingFolderIsInputMissingAndDanglingLinkIsBadData) {
  try {
    CheckpointReader reader((dir / "nowhere").string(), false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input_missing);
  }
  fs::create_symlink("step_9", dir / "latest");
  EXPECT_NE(refusal(dir / "latest").find("step_9"), std::string::npos);
}

TEST_F(Checkpoint, KeepsTheNewestAndTheListIsInOrder) {
  options.keep = 2;
  save({1, 2, 3, 4});
  const auto list = list_checkpoints(dir.string());
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].step, 4);
  EXPECT_EQ(list[1].step, 3);
  EXPECT_EQ(list[0].problem, "");
  EXPECT_GT(list[0].bytes, 0u);
}

TEST_F(Checkpoint, AfterARewindTheLaterSaveIsTheNewest) {
  options.keep = 3;
  save({10, 20, 30});
  save({15});  // resumed from 10
  const auto list = list_checkpoints(dir.string());
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].step, 15);
  EXPECT_EQ(newest_complete(dir.string(), false, {}), at(15).string());
}

// Of the same size, so that only its digest tells: the damaged one must not drive out the good one that the run goes on
// from.
TEST_F(Checkpoint, ADamagedOneDoesNotCountAsKept) {
  options.keep = 2;
  for (const bool told : {true, false}) {
    fs::remove_all(dir);
    save({20, 30});
    flip(at(30) / "shard_00000.h5", 9000);
    CheckpointWriter writer(dir.string(), options);
    if (told) writer.resumed_from(at(20).string());
    for (const std::int64_t step : {22, 24, 26}) {
      take_snapshot(fields(), run(step), {}, writer.slot());
      writer.save();
      writer.wait();
      if (step == 22) {
        EXPECT_EQ(verify_checkpoint(at(20).string(), false), "") << told;
        EXPECT_EQ(verify_checkpoint(at(22).string(), false), "");
      }
    }
    EXPECT_EQ(newest_complete(dir.string(), false, {}), at(26).string());
    ASSERT_EQ(list_checkpoints(dir.string()).size(), 2u);  // what is older than two good ones goes, damaged or not
    EXPECT_EQ(list_checkpoints(dir.string())[1].step, 24);
  }
}

TEST_F(Checkpoint, TheOneThatTheRunGoesOnFromIsNewerThanThoseItLeftBehind) {
  options.keep = 2;
  save({10, 20});
  CheckpointWriter writer(dir.string(), options);
  fs::create_symlink(at(10), dir / "link");
  writer.resumed_from((dir / "link").string());
  take_snapshot(fields(), run(15), {}, writer.slot());
  writer.save();
  writer.wait();
  EXPECT_TRUE(fs::exists(at(10)));
  EXPECT_TRUE(fs::exists(at(15)));
  EXPECT_FALSE(fs::exists(at(20)));
}

TEST_F(Checkpoint, SameStepAgainReplacesTheOldOne) {
  save({7});
  weights[0] = 99;
  ASSERT_EQ(save({7}).error, "");
  EXPECT_EQ(list_checkpoints(dir.string()).size(), 1u);
  const CheckpointReader reader(at(7).string(), true);
  std::vector<float> got(35);
  reader.read(fields()[0], got.data());
  EXPECT_EQ(got[0], 99);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "checkpoints"), fs::directory_iterator()),
            2);  // step_7 and latest
}

TEST_F(Checkpoint, FallsBackWithAWarning) {
  save({1, 2, 3});
  flip(at(3) / "shard_00000.h5", 9000);
  fs::remove(at(2) / "manifest.json");
  fs::remove(dir / "checkpoints/latest");
  fs::create_symlink("step_00000099", dir / "checkpoints/latest");
  std::vector<std::string> warnings;
  EXPECT_EQ(newest_complete(dir.string(), false, [&](const std::string& line) { warnings.push_back(line); }),
            at(1).string());
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_NE(warnings[0].find("step_00000099"), std::string::npos);
  EXPECT_NE(warnings[1].find("step 3"), std::string::npos);
  EXPECT_NE(warnings[2].find("step 2"), std::string::npos);
  EXPECT_EQ(newest_complete((dir / "none").string(), false, {}), "");
}

TEST_F(Checkpoint, LeftoversOfDeadProcessesGo) {
  save({1});
  // Beyond the largest pid that Linux gives out (2^22).
  const fs::path dead = dir / "checkpoints/step_00000002.tmp-9999999", alive = dir / "checkpoints/step_00000003.tmp-1";
  for (const fs::path& path : {dead, alive}) {
    fs::create_directories(path);
    std::ofstream(path / "shard_00000.h5") << "half";
  }
  EXPECT_EQ(list_checkpoints(dir.string()).size(), 1u);
  save({2});
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
}

// A kill in the middle of a delete must leave no half of a checkpoint under its name.
TEST_F(Checkpoint, LeavesItsNameBeforeItsFirstFileIsDeleted) {
  save({1, 2});
  const int watch = ::inotify_init1(IN_NONBLOCK);
  ::inotify_add_watch(watch, (dir / "checkpoints").c_str(), IN_MOVED_FROM);
  ::inotify_add_watch(watch, at(1).c_str(), IN_DELETE);
  delete_checkpoint(at(1).string());
  alignas(inotify_event) char events[4096];
  ASSERT_GT(::read(watch, events, sizeof events), 0);
  const auto* first = reinterpret_cast<const inotify_event*>(events);
  EXPECT_TRUE(first->mask & IN_MOVED_FROM) << first->name;
  EXPECT_STREQ(first->name, step_folder(1).c_str());
  ::close(watch);
  EXPECT_EQ(list_checkpoints(dir.string()).size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "checkpoints"), {}), 2);  // step 2 and the link
  delete_checkpoint(at(1).string());                                             // gone already
}

TEST_F(Checkpoint, StagedSaveIsTheSame) {
  options.staging_dir = (dir / "fast").string();
  options.async = false;
  ASSERT_EQ(save({1, 2}).error, "");
  EXPECT_EQ(verify_checkpoint(at(2).string(), true), "");
  EXPECT_TRUE(fs::is_empty(dir / "fast"));
}

// A file-size limit stands for a full disk: the write fails in the middle, with an errno instead of ENOSPC.
TEST_F(Checkpoint, FailedSaveLeavesOlderOnesAndNoRubbish) {
  save({1});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{300}, rlim_t{5000}}) {
    CheckpointWriter writer(dir.string(), options);
    take_snapshot(fields(), run(2), {}, writer.slot());
    const rlimit small{limit, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    writer.save();
    writer.wait();
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(writer.failures_in_a_row(), 1);
    const auto events = writer.take_events();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_NE(events[0].error, "") << limit;
    EXPECT_EQ(events[0].step, 2);
    EXPECT_EQ(list_checkpoints(dir.string()).size(), 1u);
    EXPECT_EQ(std::distance(fs::directory_iterator(dir / "checkpoints"), fs::directory_iterator()), 2);
    EXPECT_EQ(verify_checkpoint(at(1).string(), true), "");
    take_snapshot(fields(), run(2), {}, writer.slot());  // with room again it works
    writer.save();
    writer.wait();
    EXPECT_EQ(writer.failures_in_a_row(), 0);
    delete_checkpoint(at(2).string());
  }
}

// A bit that flips between copy and file: nothing is published, and the next save is whole again.
TEST_F(Checkpoint, ACopyThatChangesBeforeItIsWrittenIsNotSaved) {
  for (const bool stages : {false, true}) {
    options.staging_dir = stages ? (dir / "stage").string() : "";
    CheckpointWriter writer(dir.string(), options);
    take_snapshot(fields(), run(1), {}, writer.slot());
    writer.slot().storage[9] ^= std::byte{16};
    writer.save();
    writer.wait();
    const auto events = writer.take_events();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_NE(events[0].error.find("/model/model.layers.0.mlp.up_proj.weight: its copy in memory changed"),
              std::string::npos)
        << events[0].error;
    EXPECT_TRUE(list_checkpoints(dir.string()).empty());
    take_snapshot(fields(), run(1), {}, writer.slot());
    writer.save();
    writer.wait();
    EXPECT_EQ(writer.failures_in_a_row(), 0);
    EXPECT_EQ(verify_checkpoint(at(1).string(), true), "");
    delete_checkpoint(at(1).string());
  }
}

TEST_F(Checkpoint, SnapshotIsACopyAndReusesItsStorage) {
  Snapshot snapshot;
  take_snapshot(fields(), run(1), {}, snapshot);
  const std::byte* storage = snapshot.storage.data();
  weights[0] = 42;
  EXPECT_EQ(static_cast<const float*>(snapshot.fields[0].data)[0], 0.5f);
  auto device = fields();
  device[0].on_device = true;
  take_snapshot(
      device, run(2), [](const StateField& field, void* to) { std::memcpy(to, field.data, field.bytes()); }, snapshot);
  EXPECT_EQ(static_cast<const float*>(snapshot.fields[0].data)[0], 42.f);
  EXPECT_FALSE(snapshot.fields[0].on_device);
  EXPECT_EQ(snapshot.storage.data(), storage);
  device[1].saved = false;  // another rank's to write
  take_snapshot(
      device, run(3), [](const StateField&, void*) {}, snapshot);
  ASSERT_EQ(snapshot.fields.size(), device.size() - 1);
  EXPECT_EQ(snapshot.fields[1].path, device[2].path);
}

}  // namespace
}  // namespace sestina
