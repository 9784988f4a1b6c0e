// Replicas that see the results of refreshes at different updates, because the workers of one rank are faster: they
// drift apart, and are the same bits after a synchronisation. Against means in double and the newest rank's own copy.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/stage/coherence.hpp"
#include "regression/unit/mpi/coherence_rig.hpp"

namespace sestina {
namespace {

constexpr std::int64_t period = 6, staleness = 3;
constexpr std::size_t rows = 12, cols = 8, coherent_matrices = 2;

// Bytes that this rank hands to the library below: messages, and its part of a gather to each of the others.
class SentBytes final : public ForwardingCommunicator {
 public:
  SentBytes(std::unique_ptr<Communicator> group, std::int64_t& bytes)
      : ForwardingCommunicator(std::move(group)), bytes_(bytes) {}
  void send(int peer, const void* data, std::size_t bytes) override {
    bytes_ += static_cast<std::int64_t>(bytes);
    inner_->send(peer, data, bytes);
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    bytes_ += (size() - 1) * static_cast<std::int64_t>(bytes);
    inner_->all_gather(mine, bytes, all);
  }
  const NodeLevels* levels() const override { return inner_->levels(); }

 private:
  std::int64_t& bytes_;
};

// The same matrices, said to lie on a device: they are copied to pieces of host memory and back as such.
class AsOnDevice final : public MatrixSet<Host> {
 public:
  explicit AsOnDevice(std::unique_ptr<MatrixSet<Host>> set) : set_(std::move(set)) {}
  std::vector<StateField> replica(std::size_t i) override {
    std::vector<StateField> fields = set_->replica(i);
    for (StateField& field : fields) field.on_device = field.dtype != DType::i64;  // counters are the host's
    return fields;
  }
  void step(std::int64_t t, double factor, double scale, std::size_t begin, std::size_t end) override {
    set_->step(t, factor, scale, begin, end);
  }
  void withhold(std::int64_t t) override { set_->withhold(t); }
  bool repeats() override { return set_->repeats(); }
  std::size_t size() const override { return set_->size(); }
  const std::vector<MatrixItem<Host>>& items() const override { return set_->items(); }
  const std::string& kind() const override { return set_->kind(); }
  const std::vector<std::int64_t>& calls() const override { return set_->calls(); }
  std::vector<StateField> state() override { return set_->state(); }
  RefreshSeconds take_refresh_seconds() override { return set_->take_refresh_seconds(); }
  RefreshDrift take_refresh_drift() override { return set_->take_refresh_drift(); }
  WorkerPool* workers() override { return nullptr; }
  std::int64_t refresh_failures() const override { return set_->refresh_failures(); }
  RefreshAges ages() const override { return set_->ages(); }
  int streams() const override { return set_->streams(); }
  void dump_failures(const RefreshDump& dump) override { set_->dump_failures(dump); }
  void set_refresh_periods(const std::vector<std::int64_t>& periods) override { set_->set_refresh_periods(periods); }
  void set_refresh_staleness(std::int64_t updates) override { set_->set_refresh_staleness(updates); }
  void set_refresh_executors(const std::vector<std::uint8_t>& in_update) override {
    set_->set_refresh_executors(in_update);
  }
  void page_to(const std::shared_ptr<Pager>& pager) override { set_->page_to(pager); }
  RefreshClock refresh_clock(std::size_t i) override { return set_->refresh_clock(i); }
  void open_replica(std::size_t i) override { set_->open_replica(i); }
  void close_replica(std::size_t i) override { set_->close_replica(i); }
  void time_products(bool on) override { set_->time_products(on); }
  ProductCount take_products() override { return set_->take_products(); }

 private:
  std::unique_ptr<MatrixSet<Host>> set_;
};

// The workers of a rank wait here until they are let go.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = true;
  void set(bool now) {
    const std::lock_guard lock(mutex);
    open = now;
    changed.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(20), [&] { return open; });
  }
};

// Two matrices that every rank holds, with the same gradients on all of them.
struct Replicas {
  Replicas(const std::string& kind, int node_size, std::int64_t budget, bool on_device = false) {
    MatrixSetOptions setting;
    setting.options = default_options(*find_matrix_kind(kind));
    setting.options.refresh_every = period;
    setting.options.refresh_staleness = staleness;
    setting.options.refresh_eager = true;
    setting.threads = 1;
    setting.deterministic = true;
    setting.workers.timeout = 30;
    setting.workers.before_task = [this](const WorkerTask&) { gate.pass(); };
    options = setting.options;
    std::vector<MatrixItem<Host>> items;
    for (std::size_t i = 0; i < coherent_matrices; ++i) {
      gradients.emplace_back("gradient", rows, cols);
      masters.emplace_back("master", rows, cols);
      for (std::size_t k = 0; k < rows * cols; ++k)
        masters[i].data()[k] = 0.1f * static_cast<float>(std::sin(1.7 * static_cast<double>(k + 31 * i)));
      OwnedMatrix<Host> matrix{"w" + std::to_string(i), gradients[i], masters[i], {}};
      items.push_back({matrix, {1e-2, 0}, static_cast<std::int64_t>(i)});
    }
    set = make_matrix_set<Host>(Host(), items, setting);
    if (on_device) set = std::make_unique<AsOnDevice>(std::move(set));
    group = std::make_unique<SentBytes>(with_node_groups(world().split(0, world().rank()), node_size), bytes);
    coherence = std::make_unique<Coherence<Host>>(Host(), *group, even_nodes(world().size(), node_size), *set,
                                                  CoherenceRule{staleness, budget});
  }

  void update(std::int64_t t) {
    for (std::size_t i = 0; i < coherent_matrices; ++i)
      for (std::size_t k = 0; k < rows * cols; ++k)
        gradients[i].data()[k] =
            static_cast<float>(std::sin(0.37 * static_cast<double>((k + 1) * (i + 2)) + 1.3 * static_cast<double>(t)));
    set->step(t, 1, 1, 0, coherent_matrices);
  }
  // All fields of all replicas of this rank, by path.
  std::map<std::string, std::vector<std::byte>> fields() {
    std::map<std::string, std::vector<std::byte>> all;
    for (std::size_t i = 0; i < coherent_matrices; ++i)
      for (const StateField& field : set->replica(i)) {
        const auto* data = static_cast<const std::byte*>(field.data);
        all[field.path].assign(data, data + field.bytes());
        if (is_averaged(field.dtype, field.of_basis)) averaged[field.path] = true;
      }
    return all;
  }
  // Runs to the last update before the one that waits for the first job, whose result rank `fast` alone has seen
  // then.
  void run_apart(int fast) {
    gate.set(false);
    while (newest() == 0 && sent_at < 3 * period) update(++sent_at);
    if (world().rank() == fast) gate.set(true);
    for (int later = 1; later < staleness; ++later) {  // the first time, or on a slow machine the second
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      update(sent_at + later);
    }
    gate.set(true);
  }
  std::int64_t newest() { return set->refresh_clock(0).sent; }

  MatrixOptions options;
  Gate gate;
  std::vector<Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace>> gradients, masters;
  std::int64_t bytes = 0, sent_at = 0;
  std::map<std::string, bool> averaged;
  std::unique_ptr<MatrixSet<Host>> set;
  std::unique_ptr<Communicator> group;
  std::unique_ptr<Coherence<Host>> coherence;
};

float value(const std::vector<std::byte>& bytes, std::size_t i) {
  float x = 0;
  std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
  return x;
}

// Means are formed of at most three roundings to fp32: those of the nodes, of all, and of what is compared.
void expect_weighted_mean(const std::vector<std::byte>& after, const std::vector<std::vector<std::byte>>& before,
                          const std::string& what) {
  constexpr double eps = 1.2e-7;
  for (std::size_t i = 0; i < after.size() / sizeof(float); ++i) {
    double sum = 0, size = 0;
    for (const auto& rank : before) {
      sum += value(rank, i);
      size = std::max(size, std::abs(static_cast<double>(value(rank, i))));
    }
    EXPECT_NEAR(value(after, i), sum / static_cast<double>(before.size()), 3 * eps * size) << what << ' ' << i;
  }
}

// Ranks: Coherence 2 3 4

void expect_the_same_bits(const std::string& kind, int fast, bool on_device) {
  Replicas run(kind, 2, 0, on_device);
  run.run_apart(fast);
  const auto before = run.fields();
  std::size_t apart = 0;
  std::map<std::string, std::vector<std::vector<std::byte>>> ranks;
  for (const auto& [path, bytes] : before) {
    ranks[path] = of_all_ranks(bytes);
    apart += all_equal(bytes) ? 0 : 1;
  }
  EXPECT_GT(apart, 0u) << kind;
  EXPECT_FALSE(all_equal(before.at("/optimizer/w0/computed_from"))) << kind;
  run.coherence->synchronise();
  for (const auto& [path, bytes] : run.fields()) {
    EXPECT_TRUE(all_equal(bytes)) << kind << ' ' << path;
    if (run.averaged[path])
      expect_weighted_mean(bytes, ranks.at(path), kind + ' ' + path);
    else
      EXPECT_EQ(bytes, ranks.at(path)[static_cast<std::size_t>(fast)]) << kind << ' ' << path;
  }
  EXPECT_EQ(run.coherence->registry().version(0), 1);
  EXPECT_EQ(run.coherence->registry().last(0), run.set->refresh_clock(0).updates);
  for (std::int64_t t = run.sent_at + staleness; t <= run.sent_at + 3 * period; ++t) run.update(t);  // and it goes on
}

// Three and four ranks lie on nodes of two: three are a node of two and one of one.
TEST(Coherence, ReplicasThatDriftedAreTheSameBitsBehindASynchronisation) {
  for (const std::string& kind : asynchronous_kinds())
    for (const int fast : {0, world().size() - 1}) expect_the_same_bits(kind, fast, false);
}

TEST(Coherence, FieldsOfADeviceAreCopiedByPieces) { expect_the_same_bits("soap", world().size() - 1, true); }

// What lies in a basis follows it; roots and factors are means.
TEST(Coherence, FieldsThatLieInABasisAreNotAveraged) {
  const auto averaged = [](const std::string& kind, const std::string& field) {
    Replicas run(kind, 2, 0);
    const auto fields = run.fields();
    EXPECT_TRUE(fields.contains("/optimizer/w0/" + field)) << kind << ' ' << field;
    return run.averaged["/optimizer/w0/" + field];
  };
  for (const char* kind : {"soap", "kl-soap", "soap-muon", "basis-rotation"})
    for (const char* field : {"basis_left", "basis_right", "second_moment", "dispatched"})
      EXPECT_FALSE(averaged(kind, field)) << kind << ' ' << field;
  EXPECT_FALSE(averaged("kl-shampoo", "eigenvalue_left"));
  EXPECT_FALSE(averaged("galore", "projector"));
  EXPECT_FALSE(averaged("galore", "second_moment"));
  EXPECT_FALSE(averaged("shampoo", "basis_left"));
  for (const char* field : {"inverse_root_left", "factor_right", "momentum", "second_moment"})
    EXPECT_TRUE(averaged("shampoo", field)) << field;
  EXPECT_TRUE(averaged("soap", "factor_left"));
  EXPECT_TRUE(averaged("soap", "snapshot_left"));
}

// After which updates, by a simulation of the rule in words: S updates after a job at the earliest, and more than B
// after the synchronisation before it. Ranks differ in what is ready, not in what they do.
TEST(Coherence, IsDueByCountersAloneAndSendsLessWithALargerBudget) {
  double least = 1e300;
  for (const std::int64_t budget : {0, 5, 20}) {
    Replicas run("soap", 2, budget);
    std::int64_t last = 0, sent = 0, expected = 0;
    const std::int64_t updates = 60;
    for (std::int64_t t = 1; t <= updates; ++t) {
      run.gate.set(world().rank() % 2 == 0 || t % 4 == 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(world().rank() % 2));
      if (run.set->refresh_clock(0).updates % period == staleness - 1) run.gate.set(true);  // it is waited for
      run.update(t);
      const std::int64_t own = run.set->refresh_clock(0).updates, newest = run.newest();
      if (newest == own) sent = own;
      run.coherence->after_update();
      if (sent > 0 && own >= sent + staleness && own - last > budget) {
        ++expected;
        last = own;
        sent = 0;
      }
      EXPECT_EQ(run.coherence->registry().version(0), expected) << budget << ", update " << t;
      EXPECT_EQ(run.coherence->registry().last(0), last) << budget << ", update " << t;
    }
    run.gate.set(true);
    const CoherenceCount count = run.coherence->take_count();
    EXPECT_EQ(count.bytes.sent, run.bytes) << budget;
    EXPECT_EQ(count.blocks, static_cast<std::int64_t>(coherent_matrices) * expected) << budget;
    const double all = summed(static_cast<double>(run.bytes));
    if (budget == 0) {
      EXPECT_EQ(expected, 9);  // jobs at each sixth update after the first call
    } else if (budget == 5) {
      EXPECT_EQ(all, least);  // a budget below the period is that of every refresh
    } else {
      EXPECT_LT(all, least);
    }
    least = all;
  }
}

// Returns the largest distance of a rank's weights from the mean of all, relative to their size, of each matrix.
std::vector<double> true_drift(Replicas& run) {
  std::vector<double> drift;
  for (std::size_t i = 0; i < coherent_matrices; ++i) {
    const auto ranks = of_all_ranks(run.fields().at("/model/w" + std::to_string(i)));
    const std::size_t n = ranks[0].size() / sizeof(float);
    double largest = 0, size = 0;
    for (const auto& one : ranks) {
      double moved = 0;
      for (std::size_t k = 0; k < n; ++k) {
        double mean = 0;
        for (const auto& rank : ranks) mean += value(rank, k) / static_cast<double>(ranks.size());
        moved += (value(one, k) - mean) * (value(one, k) - mean);
        size += mean * mean / static_cast<double>(ranks.size());
      }
      largest = std::max(largest, moved);
    }
    drift.push_back(std::sqrt(largest / size));
  }
  return drift;
}

// Looks at the drift of the replicas of a run as they are, and makes equal what is beyond the bound.
CoherenceCount look_at(Replicas& run, std::int64_t budget, double bound) {
  Coherence<Host> coherence(Host(), *run.group, even_nodes(world().size(), 2), *run.set,
                            CoherenceRule{staleness, budget, bound, 7});
  run.bytes = 0;
  coherence.after_update();
  const CoherenceCount count = coherence.take_count();
  EXPECT_EQ(count.bytes.sent, run.bytes);
  EXPECT_EQ(summed(static_cast<double>(count.blocks)), static_cast<double>(count.blocks * world().size()));
  return count;
}

// Workers of one rank end their job two updates before those of all others, which makes weights drift apart. Bounds are
// eight times above and below it, beyond what an estimate of 16 signs does. Where the workers of all ranks are as late,
// nothing but sketches is sent.
TEST(Coherence, IsStartedByDriftThatLateWorkersMake) {
  const std::int64_t sketch_bytes =
      static_cast<std::int64_t>(coherent_matrices) * (world().size() - 1) * static_cast<std::int64_t>(17 * 8);
  Replicas run("soap", 2, 0);
  run.run_apart(world().size() - 1);
  run.update(run.sent_at + staleness);
  const std::vector<double> drift = true_drift(run);
  const double least = *std::min_element(drift.begin(), drift.end());
  const double most = *std::max_element(drift.begin(), drift.end());
  ASSERT_GT(least, 1e-6);
  const CoherenceCount within = look_at(run, 0, 8 * most);
  EXPECT_EQ(within.blocks, 0);
  EXPECT_EQ(within.sketches, 2);
  EXPECT_EQ(within.bytes.sent, sketch_bytes);
  EXPECT_EQ(look_at(run, 1000, 8 * most).blocks, 0);
  const CoherenceCount beyond = look_at(run, 1000, least / 8);
  EXPECT_EQ(beyond.blocks, 2);
  EXPECT_EQ(beyond.sketches, 2);
  EXPECT_GT(beyond.bytes.sent, sketch_bytes);
  for (const auto& [path, bytes] : run.fields()) EXPECT_TRUE(all_equal(bytes)) << path;
  EXPECT_EQ(look_at(run, 0, least / 8).bytes.sent, 0);  // no job was sent since

  Replicas counted("soap", 2, 0);  // a budget that is used up needs no look
  counted.run_apart(0);
  counted.update(counted.sent_at + staleness);
  const CoherenceCount due = look_at(counted, 1, 8 * most);
  EXPECT_EQ(due.blocks, 2);
  EXPECT_EQ(due.sketches, 0);

  Replicas together("soap", 2, 0);
  together.run_apart(-1);
  together.update(together.sent_at + staleness);
  const CoherenceCount equal = look_at(together, 0, 1e-12);
  EXPECT_EQ(equal.blocks, 0);
  EXPECT_EQ(equal.sketches, 2);
  EXPECT_EQ(equal.bytes.sent, sketch_bytes);
}

// A training run: the bytes that ranks sent are those of the plan, as often as blocks were synchronised; in the end
// the weights of all ranks are the same bits, and another call finds nothing to do.
TEST(Coherence, OfATrainingRunSendsWhatThePlanSays) {
  for (const std::string& kind : asynchronous_kinds()) {
    const TrainingCase run = drifting(kind, 0);
    TypedExecutor<Host, float> executor(Host(), make_plan({run.options, world().size()}), world());
    executor.initialise(5);
    executor.weights_changed();
    Trained result;
    train_steps(executor, run.options, 0, 14, result);
    executor.synchronise();
    const CoherenceCount count = executor.take_coherence();
    const CoherencePlan& plan = executor.plan().coherence;
    ASSERT_GT(plan.blocks, 0) << kind;
    const std::int64_t times = count.blocks / plan.blocks;
    EXPECT_EQ(count.blocks, times * plan.blocks) << kind;  // all are due together
    EXPECT_GE(times, 2) << kind;
    EXPECT_EQ(summed(static_cast<double>(count.bytes.sent)), static_cast<double>(times * plan.synchronisation.sent));
    EXPECT_EQ(summed(static_cast<double>(count.bytes.between_nodes)),
              static_cast<double>(times * plan.synchronisation.between_nodes));
    EXPECT_NEAR(plan.synchronisations, 0.25, 1e-3);  // every = 4
    EXPECT_TRUE(all_equal(bytes_of(whole_weights(executor)))) << kind;
    MatrixSet<Host>& matrices = *executor.stage().optimizer().matrices();
    for (std::size_t i = 0; i < matrices.size(); ++i)
      for (const StateField& field : matrices.replica(i)) {
        const auto* data = static_cast<const std::byte*>(field.data);
        EXPECT_TRUE(all_equal({data, data + field.bytes()})) << field.path;
      }
    executor.synchronise();
    EXPECT_EQ(executor.take_coherence().bytes.sent, 0);
  }
}

TEST(Coherence, OfFixedVisibilityAndOfOwnersSendsNothing) {
  for (const bool eager : {false, true}) {
    TrainingCase run = drifting("soap", 0);
    run.options.optimizer.matrix->refresh_eager = eager;
    if (eager) run.options.parallel.partition = ParallelOptions::Partition::optimal;
    TypedExecutor<Host, float> executor(Host(), make_plan({run.options, world().size()}), world());
    executor.initialise(5);
    Trained result;
    train_steps(executor, run.options, 0, 9, result);
    executor.synchronise();
    EXPECT_EQ(executor.take_coherence().bytes.sent, 0);
    EXPECT_EQ(executor.run().exchanges().coherence(), nullptr);
    EXPECT_EQ(executor.plan().coherence.blocks, 0);
    EXPECT_EQ(executor.plan().coherence.synchronisation.sent, 0);
    EXPECT_TRUE(all_equal(bytes_of(whole_weights(executor))));  // they never differ
  }
}

}  // namespace
}  // namespace sestina
