// Checkpoints on any layout: what 4 x 1 ranks write, 1, 2 x 2, 3 x 1 and 1 x 2 read and write again, and 4 x 1 read
// back: the same bits of weights and optimizer state, for every optimizer, each rank reading only what it keeps.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <tuple>

#include "app/train/restore.hpp"
#include "regression/unit/kind_names.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

struct RestartGrid {
  int dp, tp;
  bool in_shards = false;  // parallel.tp_update = "distributed"
  bool uneven = false;     // six heads, and an MLP of 83 columns, which ranks do not divide
};

// A folder that all ranks know.
class SharedFolder {
 public:
  SharedFolder() {
    path_ = (fs::temp_directory_path() / fmt::format("sestina-restart-{}", ::getpid())).string();
    world().broadcast(path_, 0);
    if (world().rank() == 0) fs::remove_all(path_);
    world().barrier();
  }
  ~SharedFolder() {
    world().barrier();
    std::error_code ignored;
    if (world().rank() == 0) fs::remove_all(path_, ignored);
  }
  std::string run(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

constexpr const char *turned_by_soap = "poet-x by soap", *turned_in_8bit = "poet-x in 8 bits",
                     *turned_in_part = "poet-x, one block";

// Kinds of optimizers, and forms of weights, a mean of the weights and that of their displacements next to them.
TrainingCase restart_case(const std::string& kind, RestartGrid grid) {
  const bool turned = kind.starts_with("poet-x"), formed = kind == "lora" || turned;
  const bool mean = kind == "ema", ahead = kind == "lookahead";
  TrainingCase run = training_case(kind == turned_by_soap ? "soap" : formed ? "adamw" : mean || ahead ? "muon" : kind);
  if (mean) run.options.train.ema_tau = 3;
  if (ahead) run.options.train.lookahead = {.factor = 0.5, .from = 2, .until = 10};
  if (formed) {
    LinearOptions& linear = run.options.model.linear;
    linear.form = turned ? "poet-x" : kind;
    linear.rank = 5;
    linear.block_size = 4;
    linear.shards = 2;
    linear.one_block = kind == turned_in_part;
    linear.merge_every = 3;
    if (kind == turned_in_8bit) {  // blocks that two ranks do not cut
      linear.state_bits = 8;
      run.options.optimizer.state_block = 8;
      run.options.model.head_dim = 16;
      run.options.model.intermediate_size = 96;
    }
  }
  run.options.parallel.dp = grid.dp;
  run.options.parallel.tp = grid.tp;
  run.options.parallel.bucket_elements = 20000;
  if (grid.uneven) {
    run = uneven(run);
    run.options.model.num_attention_heads = 6;
    run.options.model.num_key_value_heads = 6;
    run.options.model.head_dim = 8;
  }
  if (grid.in_shards) run.options.parallel.tp_update = ParallelOptions::TpUpdate::distributed;
  return run;
}

template <class Exec>
void save(TypedExecutor<Exec, float>& run, Communicator& ranks, RestartGrid grid, const std::string& folder) {
  WriterGroup group{ranks.rank(), ranks.size(), std::to_string(::getpid()), 30, grid.dp, grid.tp, 1};
  ranks.broadcast(group.token, 0);
  CheckpointWriter writer(folder, CheckpointOptions(), group);
  ranks.barrier();  // the first rank has removed what was left there
  RunState state;
  state.step = 5;
  take_snapshot(run.fields(), state, {}, writer.slot());
  writer.save();
  writer.wait();
  for (const CheckpointWriter::Event& event : writer.take_events()) EXPECT_EQ(event.error, "") << folder;
  ranks.barrier();
}

template <class Exec>
void load(TypedExecutor<Exec, float>& run, const std::string& folder) {
  const CheckpointReader reader(folder + "/checkpoints/step_00000005", Verify::opened);
  restore(run, reader, run.fields(), false);
  run.weights_changed();
}

// Every tensor of a checkpoint, whole.
std::map<std::string, std::vector<std::byte>> contents(const std::string& folder) {
  const CheckpointReader reader(folder + "/checkpoints/step_00000005", Verify::full);
  std::map<std::string, std::vector<std::byte>> all;
  for (const CheckpointReader::Entry& entry : reader.entries()) {
    StateField field;
    field.path = entry.path;
    field.dtype = entry.dtype;
    field.shape = entry.shape;
    field.row_end = entry.shape[0];
    all[entry.path].resize(field.bytes());
    reader.read(field, all[entry.path].data());
  }
  return all;
}

// Ranks [0, dp * tp) read `from` and write `to`; the others wait.
template <class Exec>
void pass_through(const std::string& kind, RestartGrid grid, const std::string& from, const std::string& to) {
  const int size = grid.dp * grid.tp;
  const bool takes_part = world().rank() < size;
  const auto ranks = world().split(takes_part ? 0 : 1, world().rank());
  if (takes_part) {
    const TrainingCase run = restart_case(kind, grid);
    TypedExecutor<Exec, float> session(Exec(), make_plan({run.options, ranks->size()}), *ranks);
    session.initialise(77);  // other weights than those that are read
    load(session, from);
    save(session, *ranks, grid, to);
  }
  world().barrier();
}

// All ranks train five updates and write what they have.
template <class Exec>
void train_and_save(const TrainingCase& run, RestartGrid grid, const std::string& to) {
  TypedExecutor<Exec, float> session(Exec(), make_plan({run.options, world().size()}), world());
  session.initialise(5);
  Trained ignored;
  train_steps(session, run.options, 0, 5, ignored);
  save(session, world(), grid, to);
}

// Writes a checkpoint on the grid `first`; each of the others reads what the one before wrote, and writes the same.
template <class Exec>
void expect_passages(const std::string& kind, RestartGrid first, const std::vector<RestartGrid>& grids) {
  const SharedFolder folder;
  train_and_save<Exec>(restart_case(kind, first), first, folder.run("first"));
  int number = 0;
  std::string last = folder.run("first");
  for (const RestartGrid grid : grids) {
    const std::string next = folder.run(std::to_string(++number));
    pass_through<Exec>(kind, grid, last, next);
    if (world().rank() == 0) {
      EXPECT_TRUE(contents(folder.run("first")) == contents(next)) << kind << ", passage " << number;
    }
    last = next;
  }
}

// Ranks: Restart 4
template <class Space>
class Restart : public testing::Test {};
TYPED_TEST_SUITE(Restart, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(Restart, EveryLayoutReadsWhatAnotherWrote) {
  ASSERT_EQ(world().size(), 4);
  std::vector<std::string> kinds = every_kind_without_tp();
  kinds.insert(kinds.end(), {"lora", turned_by_soap, turned_in_8bit, turned_in_part, "ema", "lookahead"});
  for (const std::string& kind : kinds) {
    const SharedFolder folder;
    const RestartGrid four{4, 1};
    train_and_save<TypeParam>(restart_case(kind, four), four, folder.run("first"));
    std::string last = folder.run("first");
    std::vector<std::string> names;
    for (const RestartGrid grid : {RestartGrid{1, 1}, RestartGrid{2, 2}, RestartGrid{3, 1}, RestartGrid{1, 2}, four}) {
      if (is_int8(kind) && grid.tp > 1) continue;
      names.push_back(fmt::format("{}x{}", grid.dp, grid.tp));
      const std::string next = folder.run(names.back());
      pass_through<TypeParam>(kind, grid, last, next);
      last = next;
    }
    if (world().rank() == 0) {
      const auto first = contents(folder.run("first"));
      EXPECT_GT(first.size(), 20u);
      for (const std::string& name : names) EXPECT_TRUE(first == contents(folder.run(name))) << kind << " on " << name;
    }
    world().barrier();
  }
}

// Where several ranks keep the same state, one of them writes it and all read it.
TYPED_TEST(Restart, CopiesAreWrittenOnce) {
  for (const auto& [grid, partition, update] :
       {std::tuple(RestartGrid{4, 1}, ParallelOptions::Partition::replicated, ParallelOptions::TpUpdate::home),
        std::tuple(RestartGrid{2, 2}, ParallelOptions::Partition::replicated, ParallelOptions::TpUpdate::home),
        std::tuple(RestartGrid{2, 2}, ParallelOptions::Partition::optimal, ParallelOptions::TpUpdate::duplicated)}) {
    const SharedFolder folder;
    TrainingCase run = restart_case("soap", grid);
    run.options.parallel.partition = partition;
    run.options.parallel.tp_update = update;
    train_and_save<TypeParam>(run, grid, folder.run("copies"));
    pass_through<TypeParam>("soap", {1, 1}, folder.run("copies"), folder.run("one"));
    pass_through<TypeParam>("soap", {4, 1}, folder.run("one"), folder.run("four"));
    if (world().rank() == 0) EXPECT_TRUE(contents(folder.run("copies")) == contents(folder.run("four")));
  }
}

// State that lies in shards is that of the whole matrices: written in shards, read whole, and the other way round.
// With 1 x 4, two ranks hold the same key and value heads, and one of them writes.
TYPED_TEST(Restart, ShardsAndWholeMatricesReadOneAnother) {
  for (const char* kind : {"muon", "normuon", "adamuon"})
    expect_passages<TypeParam>(kind, {1, 4, true}, {{1, 1}, {2, 2, true}, {2, 2}, {1, 2, true}, {1, 4, true}});
}

// Parts of an MLP that differ: from three tensor-parallel ranks to one, to two, and back.
TYPED_TEST(Restart, UnevenPartsReadOneAnother) {
  for (const char* kind : {"adamw", "muon", "soap"}) {
    const bool shards = std::string(kind) == "muon";
    const RestartGrid first{2, 2, false, true};
    expect_passages<TypeParam>(
        kind, first, {{1, 3, shards, true}, {1, 1, false, true}, {1, 2, shards, true}, {1, 3, false, true}, first});
  }
}

// Training goes on to the same bits after a restart on the same layout, and on another with aligned parts.
TYPED_TEST(Restart, TrainingGoesOnToTheSameBits) {
  for (const char* kind :
       {"soap", "muon", "shampoo", adamw_8bit, galore_8bit, apollo_8bit, turned_by_soap, turned_in_8bit}) {
    const SharedFolder folder;
    const int tp = std::string(kind).starts_with("poet-x") ? 2 : 1;
    const RestartGrid four{4 / tp, tp};
    const TrainingCase run = restart_case(kind, four);
    Trained whole;
    {
      TypedExecutor<TypeParam, float> session(TypeParam(), make_plan({run.options, world().size()}), world());
      session.initialise(5);
      train_steps(session, run.options, 0, 5, whole);
      save(session, world(), four, folder.run("run"));
      train_steps(session, run.options, 5, 10, whole);
      whole.weights = whole_weights(session);
    }
    std::vector<RestartGrid> grids{four};
    if (tp == 1) grids.insert(grids.end(), {{2, 1}, {1, 1}});  // else sums are rounded in another order
    for (const RestartGrid grid : grids) {
      const bool takes_part = world().rank() < grid.dp * tp;
      const auto ranks = world().split(takes_part ? 0 : 1, world().rank());
      if (!takes_part) continue;
      const TrainingCase part = restart_case(kind, grid);
      TypedExecutor<TypeParam, float> session(TypeParam(), make_plan({part.options, ranks->size()}), *ranks);
      load(session, folder.run("run"));
      Trained rest;
      train_steps(session, part.options, 5, 10, rest);
      EXPECT_EQ(rest.loss, std::vector<double>(whole.loss.begin() + 5, whole.loss.end())) << kind << ", dp " << grid.dp;
      EXPECT_EQ(whole_weights(session), whole.weights) << kind << ", dp " << grid.dp;
    }
    world().barrier();
  }
}

}  // namespace
}  // namespace sestina
