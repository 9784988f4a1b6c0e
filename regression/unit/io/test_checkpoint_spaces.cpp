// Checkpoints of what lies in the memory of a space, through the copies that a run makes: weights and optimizer state
// of every kind out of a stage and into another one, to the bit.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "io/checkpoint/checkpoint.hpp"
#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/core/stage_rig.hpp"
#include "regression/unit/io/test_files.hpp"
#include "regression/unit/kind_names.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

using Bytes = std::vector<std::byte>;

OptimizerOptions options_of(const std::string& kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.lr = options.adamw.lr = 0.01;
  if (const MatrixKind* known = find_matrix_kind(kind)) options.matrix = default_options(*known);
  return options;
}

// A model after `steps` updates, begun with weights of `seed`.
template <class Space, class T>
struct Trained {
  OptimizerOptions options;
  StageRig<Space, T> rig;
  std::int32_t tokens[18];

  Trained(const std::string& kind, std::uint64_t seed, int steps)
      : options(options_of(kind)), rig(small_model(Family::llama), {2, 8}, &options) {
    std::iota(std::begin(tokens), std::end(tokens), 4);
    rig.stage.initialise(seed);
    rig.stage.weights_changed();
    rig.load(tokens);
    for (int step = 1; step <= steps; ++step) {
      rig.forward_backward(1, 0);
      rig.update(step, 1, 0.5);
    }
  }
  std::vector<StateField> fields() const {
    std::vector<StateField> all = rig.stage.model_fields();
    for (StateField& field : rig.stage.optimizer().state()) all.push_back(std::move(field));
    return all;
  }
  std::vector<Bytes> contents() const {
    std::vector<Bytes> all;
    for (const StateField& field : fields()) {
      all.emplace_back(field.bytes());
      copy_to_host(rig.exec, field, all.back().data());
    }
    return all;
  }
  void snapshot_into(Snapshot& snapshot) const {
    RunState run;
    run.step = 2;
    take_snapshot(
        fields(), run, [this](const StateField& field, void* to) { copy_to_host(rig.exec, field, to); }, snapshot);
  }
  void restore_from(const std::string& checkpoint) {
    const CheckpointReader reader(checkpoint, Verify::full);
    for (const StateField& field : fields()) {
      Bytes host(field.bytes());
      reader.read(field, host.data());
      copy_from_host(rig.exec, field, host.data());
    }
    rig.stage.weights_changed();
  }
};

// Saves what `before` holds; the path of the checkpoint.
template <class Space, class T>
std::string save(const Trained<Space, T>& before, const test::TemporaryFolder& folder) {
  CheckpointWriter writer(folder.path(), CheckpointOptions());
  before.snapshot_into(writer.slot());
  EXPECT_EQ(writer.slot().problem, "");
  writer.save();
  writer.wait();
  const CheckpointWriter::Event event = writer.take_events().at(0);
  EXPECT_EQ(event.error, "");
  return event.path;
}

template <class Space, class T>
void expect_round_trip(const std::string& kind) {
  const test::TemporaryFolder folder;
  Trained<Space, T> before(kind, 1, 2), after(kind, 77, 0);
  std::size_t held = 0;
  for (const StateField& field : before.fields()) held += field.on_device;
  EXPECT_EQ(held > 0, !is_host<Space>) << kind;  // where they lie is what the copies are about
  const std::vector<Bytes> saved = before.contents();
  EXPECT_NE(saved, after.contents()) << kind;
  after.restore_from(save(before, folder));
  EXPECT_TRUE(saved == after.contents()) << kind;
  EXPECT_EQ(after.rig.loss(), before.rig.loss()) << kind;  // compute weights were rounded again
  // What lies elsewhere than in fields is not needed to go on.
  for (Trained<Space, T>* run : {&before, &after}) {
    run->rig.forward_backward(1, 0);
    run->rig.update(3, 1, 0.5);
  }
  EXPECT_TRUE(before.contents() == after.contents()) << kind;
}

template <class Space>
class CheckpointSpaces : public testing::Test {};
TYPED_TEST_SUITE(CheckpointSpaces, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(CheckpointSpaces, EveryKindsStateComesBackToTheBit) {
  std::vector<std::string> kinds = kind_names();
  kinds.push_back("adamw");
  for (const std::string& kind : kinds) expect_round_trip<TypeParam, float>(kind);
  expect_round_trip<TypeParam, bf16>("muon");
}

TYPED_TEST(CheckpointSpaces, ASnapshotIsACopyAndReusesItsStorage) {
  Trained<TypeParam, float> run("muon", 1, 1);
  const std::vector<Bytes> before = run.contents();
  Snapshot snapshot;
  run.snapshot_into(snapshot);
  const std::byte* storage = snapshot.storage.data();
  run.rig.forward_backward(1, 0);
  run.rig.update(2, 1, 0.5);
  ASSERT_EQ(snapshot.fields.size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_FALSE(snapshot.fields[i].on_device);
    EXPECT_EQ(std::memcmp(snapshot.fields[i].data, before[i].data(), before[i].size()), 0) << snapshot.fields[i].path;
  }
  run.snapshot_into(snapshot);
  EXPECT_EQ(snapshot.storage.data(), storage);
  EXPECT_NE(std::memcmp(snapshot.fields[0].data, before[0].data(), before[0].size()), 0);
}

TYPED_TEST(CheckpointSpaces, AValueThatIsNotFiniteIsNamed) {
  Trained<TypeParam, float> run("muon", 1, 1);
  for (const std::size_t i : {std::size_t{0}, run.fields().size() - 1}) {
    const StateField field = run.fields()[i];
    const Bytes good = run.contents()[i];
    Bytes bad = good;
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(bad.data() + bad.size() - sizeof infinity, &infinity, sizeof infinity);
    Snapshot snapshot;
    copy_from_host(run.rig.exec, field, bad.data());
    run.snapshot_into(snapshot);
    EXPECT_EQ(snapshot.problem.rfind(field.path + " holds a value that is not finite (inf at ", 0), 0u)
        << snapshot.problem;
    copy_from_host(run.rig.exec, field, good.data());
    run.snapshot_into(snapshot);
    EXPECT_EQ(snapshot.problem, "");
  }
}

// A slab of rows or columns lands in device memory as it lay in the whole tensor.
TYPED_TEST(CheckpointSpaces, SlabsAreReadIntoTheSpace) {
  const test::TemporaryFolder folder;
  const Trained<TypeParam, float> run("muon", 1, 1);
  const CheckpointReader reader(save(run, folder), Verify::opened);
  StateField field;
  std::vector<float> whole;
  for (const StateField& one : run.rig.stage.model_fields())
    if (one.path == "/model/model.layers.0.mlp.up_proj.weight") field = one;
  ASSERT_EQ(field.shape.size(), 2u);
  whole.resize(field.bytes() / sizeof(float));
  copy_to_host(run.rig.exec, field, whole.data());
  const std::int64_t columns = field.shape[1];
  field.row_begin = 3, field.row_end = 9;
  field.col_begin = 2, field.col_end = 7;
  const std::size_t n = field.bytes() / sizeof(float);
  ASSERT_EQ(n, 30u);
  std::vector<float> host(n), back(n);
  reader.read(field, host.data());
  const Kokkos::View<float*, typename TypeParam::memory_space> held("held", n);
  field.data = held.data();
  copy_from_host(run.rig.exec, field, host.data());
  copy_to_host(run.rig.exec, field, back.data());
  for (std::size_t i = 0; i < n; ++i)
    EXPECT_EQ(back[i], whole[static_cast<std::size_t>((3 + static_cast<std::int64_t>(i) / 5) * columns + 2) + i % 5])
        << i;
}

}  // namespace
}  // namespace sestina
