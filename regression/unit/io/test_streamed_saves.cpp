// Saves of state that is more than memory holds: straight from the store to the checkpoint, to the same bytes as by way
// of a copy, whatever fails on either side.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "core/memory/state_field.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "io/store/block_file.hpp"
#include "regression/unit/core/paging_rig.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

constexpr std::int64_t columns = 1000;

StateField field_of(const std::string& path, std::int64_t rows, void* data, Pager* pager = nullptr) {
  StateField field;
  field.path = path;
  field.shape = {rows, columns};
  field.row_end = rows;
  field.data = data;
  field.pager = pager;
  return field;
}

// Blocks of a store, some of them above a piece, and fields in memory between them. What memory holds of the blocks at
// a time is a quarter of them.
struct Large {
  explicit Large(std::shared_ptr<BlockStore> store) : pager(std::make_shared<Pager>(store, Pager::Options{})) {
    std::size_t all = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      blocks.push_back(page_memory(bytes(i)));
      pager->add("block " + std::to_string(i), blocks[i], bytes(i));
      all += pager->whole(bytes(i));
    }
    pager->need(all / 4, 0);
    pager->attach();
    pager->open();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      {
        const Pin pin(pager.get(), blocks[i].get(), Pager::Need::room);
        fill(blocks[i].get(), bytes(i), static_cast<unsigned>(i));
      }
      pager->wait_idle();
      in_memory.emplace_back(17 * columns);
      fill(reinterpret_cast<std::byte*>(in_memory[i].data()), 17 * columns * sizeof(float),
           100 + static_cast<unsigned>(i));
    }
  }
  ~Large() { pager->detach(); }

  static std::size_t bytes(std::size_t i) { return static_cast<std::size_t>(rows[i] * columns) * sizeof(float); }
  static void fill(std::byte* to, std::size_t bytes, unsigned seed) {
    std::vector<float> values(bytes / sizeof(float));
    std::iota(values.begin(), values.end(), 1e6f * static_cast<float>(seed));
    std::memcpy(to, values.data(), bytes);
  }
  std::vector<StateField> fields() {
    std::vector<StateField> all;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      all.push_back(field_of(fmt::format("/model/w{}", i), 17, in_memory[i].data()));
      all.push_back(field_of(fmt::format("/optimizer/w{}/factor", i), rows[i], blocks[i].get(), pager.get()));
    }
    all.push_back(field_of("/optimizer/none", 0, in_memory[0].data(), pager.get()));
    return all;
  }

  static constexpr std::array<std::int64_t, 8> rows = {300, 3000, 1, 2500, 2097, 2200, 1300, 2895};
  std::shared_ptr<Pager> pager;
  std::vector<std::shared_ptr<std::byte>> blocks;
  std::vector<std::vector<float>> in_memory;
};

std::shared_ptr<reference::MemoryStore> memory_store() { return std::make_shared<reference::MemoryStore>(); }

RunState run_of(std::int64_t step) {
  RunState run;
  run.step = step;
  return run;
}

CheckpointWriter::Event save(const std::string& folder, Large& state, const CheckpointOptions& options,
                             std::size_t* copied = nullptr) {
  CheckpointWriter writer(folder, options);
  Snapshot& slot = writer.slot();
  take_snapshot(state.fields(), run_of(3), {}, slot, options.async);
  if (copied != nullptr) *copied = slot.storage.size();
  writer.save();
  writer.wait();
  return writer.take_events().at(0);
}

// Where the tensors lie in their file, and digests of their bytes; the rest of it is HDF5's, with times.
std::string places_of(const std::string& checkpoint) {
  std::string text;
  for (const ManifestTensor& tensor : load_manifest(checkpoint).tensors)
    for (const ManifestPiece& piece : tensor.pieces)
      text += fmt::format("{} at {}: {} bytes, {}\n", tensor.path, piece.offset, piece.bytes, piece.xxh3_64);
  return text;
}

// By way of a copy of all of it, as of fields that lie in memory.
std::string saved_by_copy(const std::string& folder) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<StateField> fields;
  Large state(memory_store());
  for (StateField field : state.fields()) {
    const Pin pin(field.pager, field.data, Pager::Need::reading);
    memory.emplace_back(field.bytes());
    std::memcpy(memory.back().data(), field.data, field.bytes());
    field.data = memory.back().data();
    field.pager = nullptr;
    fields.push_back(field);
  }
  CheckpointWriter writer(folder, {});
  take_snapshot(fields, run_of(3), {}, writer.slot());
  writer.save();
  writer.wait();
  return places_of(writer.take_events().at(0).path);
}

TEST(StreamedSaves, TheBytesOfACheckpointAreTheSame) {
  const test::TemporaryFolder folder;
  const std::string expected = saved_by_copy(folder / "copied");
  ASSERT_NE(expected.find("/optimizer/w7/factor at "), std::string::npos) << expected;
  CheckpointOptions late, at_once, staged;
  at_once.async = false;
  staged.staging_dir = folder / "stage";
  for (const CheckpointOptions* options : {&late, &at_once, &staged}) {
    Large state(std::make_shared<BlockFile>(BlockFile::Options{.path = folder / "store/blocks"}));
    const CheckpointWriter::Event event = save(folder / "run", state, *options);
    ASSERT_EQ(event.error, "");
    EXPECT_EQ(places_of(event.path), expected) << options->async << options->staging_dir;
    EXPECT_EQ(verify_checkpoint(event.path, true), "");
  }
}

TEST(StreamedSaves, WhatIsOnADiskIsNeverInMemoryAsAWhole) {
  const test::TemporaryFolder folder;
  for (const bool async : {true, false}) {
    Large state(memory_store());
    CheckpointOptions options;
    options.async = async;
    std::size_t copied = 0;
    ASSERT_EQ(save(folder.path(), state, options, &copied).error, "");
    const Pager::Counts counts = state.pager->counts();
    EXPECT_LE(counts.largest, state.pager->limit());
    EXPECT_LT(4 * state.pager->limit(), state.pager->bytes() + 4096);
    EXPECT_LT(copied, async ? 8 * 18 * columns * sizeof(float) : 1)
        << "what lies in memory, without checkpoint.async nothing";
  }
}

// Such as the moments of a large embedding: one block is in memory at a time, and the bytes are those of a copy.
TEST(StreamedSaves, AFieldOfSeveralBlocksGoesBlockByBlock) {
  const test::TemporaryFolder folder;
  const std::int64_t rows = 5003;
  const std::size_t bytes = static_cast<std::size_t>(rows * columns) * sizeof(float);
  std::vector<std::byte> copy(bytes);
  Large::fill(copy.data(), bytes, 3);
  const std::shared_ptr<std::byte> memory = page_memory(bytes);
  const auto pager = std::make_shared<Pager>(memory_store(), Pager::Options{});
  for (std::size_t begin = 0; begin < bytes; begin += field_piece_bytes)
    pager->add("/optimizer/w/momentum", {memory, memory.get() + begin}, std::min(field_piece_bytes, bytes - begin));
  pager->need(field_piece_bytes, 0);
  pager->attach();
  pager->open();
  const StateField field = field_of("/optimizer/w/momentum", rows, memory.get(), pager.get());
  for_each_block(field, [&](const StateField& part, std::size_t begin) {
    const auto to = write_to(part, Pager::Need::room);
    std::memcpy(to.view(), copy.data() + begin, part.bytes());
  });
  const auto saved = [&](const StateField& of, const std::string& to) {
    CheckpointWriter writer(folder / to, {});
    take_snapshot({of}, run_of(3), {}, writer.slot());
    writer.save();
    writer.wait();
    return places_of(writer.take_events().at(0).path);
  };
  EXPECT_EQ(saved(field, "streamed"), saved(field_of(field.path, rows, copy.data()), "copied"));
  EXPECT_LE(pager->counts().largest, field_piece_bytes);
  pager->detach();
}

// A save looks at state: nothing of it is written back, and no digest is taken of what the store is known to have.
TEST(StreamedSaves, WhatASaveReadsIsNotWrittenBack) {
  const test::TemporaryFolder folder;
  for (const bool beyond_memory : {true, false}) {  // streamed, and copied
    const auto store = memory_store();
    Large state(store);
    store->in_memory = !beyond_memory;
    state.pager->wait_idle();
    store->written.clear();
    store->moved = {};
    ASSERT_EQ(save(folder.path(), state, {}).error, "");
    state.pager->wait_idle();
    EXPECT_TRUE(store->written.empty()) << "first: " << *store->written.begin();
    EXPECT_EQ(store->moved.bytes_written, 0u);
    EXPECT_GT(store->moved.bytes_same, 0u);
    EXPECT_EQ(store->lost, 0);
  }
}

TEST(StreamedSaves, AValueThatIsNotFiniteFailsTheSave) {
  const test::TemporaryFolder folder;
  Large state(memory_store());
  {
    const Pin pin(state.pager.get(), state.blocks[1].get());
    reinterpret_cast<float*>(state.blocks[1].get())[2987 * columns + 7] = std::nanf("");
  }
  CheckpointWriter writer(folder.path(), {});
  take_snapshot(state.fields(), run_of(3), {}, writer.slot());
  EXPECT_EQ(writer.slot().problem, "");
  writer.save();
  writer.wait();
  const std::string problem = "/optimizer/w1/factor holds a value that is not finite (nan at row 2987, column 7)";
  EXPECT_EQ(writer.streamed_problem(), problem);
  EXPECT_EQ(writer.take_events().at(0).error, problem);
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
}

TEST(StreamedSaves, AStoreThatCannotBeReadFailsTheSaveAndTheNextOneIsWell) {
  const test::TemporaryFolder folder;
  const auto store = memory_store();
  Large state(store);
  CheckpointWriter writer(folder.path(), {});
  take_snapshot(state.fields(), run_of(3), {}, writer.slot());
  store->fails = [](const BlockStore::Transfer& t) { return !t.writes && t.block == 4; };
  EXPECT_THROW(writer.save(), Error);
  writer.wait();
  EXPECT_NE(writer.take_events().at(0).error, "");
  store->fails = {};
  take_snapshot(state.fields(), run_of(4), {}, writer.slot());
  writer.save();
  writer.wait();
  EXPECT_EQ(writer.take_events().at(0).error, "");
}

// The side that writes ends first: nobody waits for it, and the blocks are free.
TEST(StreamedSaves, ARunDirectoryThatCannotBeWrittenHoldsNothingUp) {
  const test::TemporaryFolder folder;
  Large state(memory_store());
  CheckpointWriter writer(folder / "run", {});
  std::ofstream(folder / "run") << "a file";
  take_snapshot(state.fields(), run_of(3), {}, writer.slot());
  writer.save();
  writer.wait();
  EXPECT_NE(writer.take_events().at(0).error, "");
  state.pager->wait_idle();
  EXPECT_LE(state.pager->counts().in_memory, state.pager->limit());
}

TEST(StreamedSaves, AWriterThatGoesInTheMiddleOfASaveLeavesNone) {
  const test::TemporaryFolder folder;
  Large state(memory_store());
  {
    CheckpointWriter writer(folder.path(), {});
    take_snapshot(state.fields(), run_of(3), {}, writer.slot());
    writer.start();
  }
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
}

// As those of an import: what is copied lies in a file.
TEST(StreamedSaves, FieldsWithoutMemoryAreFetched) {
  const test::TemporaryFolder folder;
  const auto fetch = [](const StateField& field, void* to) { std::memset(to, 1, field.bytes()); };
  StateField field = field_of("/model/w", 17, nullptr);
  field.on_device = true;
  CheckpointWriter writer(folder.path(), {});
  take_snapshot({field}, run_of(3), fetch, writer.slot());
  EXPECT_TRUE(writer.slot().streamed.empty());
  writer.save();
  writer.wait();
  EXPECT_EQ(writer.take_events().at(0).error, "");
}

// What a load and `checkpoint convert` have in memory at a time.
TEST(StreamedSaves, RowsComeInPiecesThatCoverTheField) {
  StateField field = field_of("/model/w", 5000, nullptr);
  field.row_begin = 100;
  field.col_begin = 20, field.col_end = 820;
  std::int64_t next = field.row_begin;
  std::size_t pieces = 0;
  for_each_rows(field, [&](const StateField& rows) {
    EXPECT_EQ(rows.row_begin, next);
    EXPECT_LE(rows.bytes(), field_piece_bytes);
    next = rows.row_end;
    ++pieces;
  });
  EXPECT_EQ(next, field.row_end);
  EXPECT_EQ(pieces, (field.bytes() + field_piece_bytes - 1) / field_piece_bytes);
  field.row_end = field.row_begin;
  for_each_rows(field, [&](const StateField& rows) { pieces += rows.bytes() == 0 ? 1 : 0; });
  EXPECT_EQ(pieces, 3u) << "none at all are one piece";
}

}  // namespace
}  // namespace sestina
