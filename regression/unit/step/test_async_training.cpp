// Asynchronous refreshes inside a real training run, for every optimizer that has them: a step allocates nothing; with
// fixed visibility the bits depend on no number of workers or threads, and a run that is interrupted while jobs are in
// flight ends with the same bits; metrics and trace tell the ages and what workers do.
#include <gtest/gtest.h>

#include <atomic>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "core/optimizer/base/routing.hpp"
#include "regression/unit/step/optimizer_run.hpp"

namespace sestina {
namespace {

std::vector<std::string> asynchronous_kinds() {
  std::vector<std::string> names;
  for (const std::string& name : kind_names())
    if (find_matrix_kind(name)->refresh_needs != nullptr) names.push_back(name);
  return names;
}

std::string keys(int workers, const std::string& visibility = "fixed", int staleness = 2) {
  return "[optimizer.refresh]\nevery = 4\nmode = \"async\"\nstaleness = " + std::to_string(staleness) +
         "\nvisibility = \"" + visibility + "\"\nworkers = " + std::to_string(workers) + "\n";
}

class AsyncTraining : public OptimizerRun {};

TEST_P(AsyncTraining, AllocatesNothing) {
  expect_no_allocation<float>(setup(40, "allocation", "fp32", keys(2)), 14, 8);
}

TEST_P(AsyncTraining, AllocatesNothingWhileWorkersAreTraced) {
  TrainSetup run = setup(40, "traced_allocation", "fp32", keys(2));
  run.options.metrics.trace = 30;
  expect_no_allocation<float>(run, 14, 8);
}

TEST_P(AsyncTraining, FixedBitsDependOnNoNumberOfWorkersOrThreads) {
  const std::string one = train(setup(11, "one", "fp32", keys(1)), Host(1));
  EXPECT_EQ(train(setup(11, "two", "fp32", keys(3)), Host(2)), one);
  EXPECT_NE(train(setup(11, "other", "fp32", keys(1, "fixed", 1)), Host(1)), one);
}

TEST_P(AsyncTraining, AResumeWithJobsInFlightGivesTheSameBits) {
  const std::string whole = train(setup(12, "whole", "fp32", keys(1)), Host());
  for (const int stop : {5, 6}) {  // of the two counts that kinds have, one is between its dispatch and its result
    const std::string run = "part" + std::to_string(stop);
    train(setup(stop, run, "fp32", keys(1)), Host());
    TrainSetup rest = setup(12, run, "fp32", keys(2));
    rest.checkpoint = newest_complete(rest.run_dir, false, [](const std::string&) {});
    EXPECT_EQ(train(rest, Host()), whole) << stop;
  }
}

TEST_P(AsyncTraining, NoStalenessIsInline) {
  EXPECT_EQ(weights_of(train_parts(setup(9, "none", "fp32", keys(1, "fixed", 0)), Host())),
            weights_of(train_parts(setup(9, "inline", "fp32", "[optimizer.refresh]\nevery = 4\n"), Host())));
}

TEST_P(AsyncTraining, MetricsTellTheAges) {
  for (const char* visibility : {"fixed", "eager"}) {
    const TrainSetup run = setup(16, std::string("age_") + visibility, "fp32", keys(1, visibility));
    train(run, Host());
    std::int64_t most = 0;
    double mean = 0;
    for (const TrainLine& line : read_history(run.run_dir).train) {
      most = std::max(most, line.preconditioner_age_max);
      mean = std::max(mean, line.preconditioner_age_mean);
      EXPECT_LE(line.preconditioner_age_mean, static_cast<double>(line.preconditioner_age_max));
    }
    const bool fixed = visibility == std::string("fixed");
    EXPECT_LE(most, 4 + 2 - 1);  // before a result that is as late as it may be
    EXPECT_GE(most, fixed ? 5 : 3);
    EXPECT_GE(mean, 3);
  }
}

// every = 4, S = 2: workers' results are taken two updates after their copies, and in no other update.
TEST_P(AsyncTraining, MetricsTellWhatWorkersAndCopiesTake) {
  const TrainSetup run = setup(16, "workers", "fp32", keys(1));
  train(run, Host());
  const RunHistory history = read_history(run.run_dir);
  const std::vector<double>& copies = history.more.at("refresh_copy_s");
  const std::vector<double>& workers = history.more.at("refresh_worker_s");
  int sent = 0, taken = 0;
  for (std::size_t i = 4; i < history.train.size(); ++i) {
    EXPECT_GE(copies[i], 0);
    EXPECT_LE(copies[i], history.train[i].optimizer_s);
    const bool took = workers[i] > 0;
    taken += took;
    if (took && copies[i - 2] > 0) ++sent;
    EXPECT_TRUE(took || workers[i] == 0);
  }
  EXPECT_GE(taken, 2);  // three, and two of kinds whose first result comes with update 4
  EXPECT_EQ(sent, taken);

  const TrainSetup inlined = setup(6, "inlined", "fp32", "[optimizer.refresh]\nevery = 4\n");
  train(inlined, Host());
  EXPECT_FALSE(read_history(inlined.run_dir).more.contains("refresh_worker_s"));
}

// A counter of trace.json: its values in order.
std::map<std::string, std::vector<double>> counters_of(const std::string& run_dir) {
  std::map<std::string, std::vector<double>> counters;
  std::ifstream file(run_dir + "/trace.json");
  const nlohmann::json trace = nlohmann::json::parse(file);
  for (const nlohmann::json& event : trace.at("traceEvents"))
    if (event.at("ph") == "C") counters[event.at("name")].push_back(event.at("args").at("value"));
  return counters;
}

std::vector<double> last_of(const std::vector<double>& values, std::size_t count) {
  return {values.end() - static_cast<std::ptrdiff_t>(std::min(count, values.size())), values.end()};
}

TEST_P(AsyncTraining, TheTraceTellsTheAges) {
  TrainSetup run = setup(10, "traced", "fp32", keys(1));
  run.options.metrics.trace = 5;
  train(run, Host());
  const auto counters = counters_of(run.run_dir);
  const std::vector<TrainLine> lines = read_history(run.run_dir).train;
  std::vector<double> oldest, mean;  // of updates 4 to 7: Shampoo has no roots before
  for (std::size_t i = 3; i < 7; ++i) {
    oldest.push_back(static_cast<double>(lines[i].preconditioner_age_max));
    mean.push_back(lines[i].preconditioner_age_mean);
  }
  EXPECT_EQ(last_of(counters.at("preconditioner age, oldest"), 4), oldest);
  EXPECT_EQ(last_of(counters.at("preconditioner age, mean"), 4), mean);
  EXPECT_GT(*std::max_element(mean.begin(), mean.end()), 0);
}

struct Job {
  std::string name;
  double begin, end;  // microseconds
};

// Rows of workers in trace.json, by name; of other rows those of computation alone.
std::map<std::string, std::vector<Job>> rows_of(const std::string& run_dir) {
  std::map<std::string, std::vector<Job>> rows;
  std::map<int, std::string> names;
  std::ifstream file(run_dir + "/trace.json");
  const nlohmann::json trace = nlohmann::json::parse(file);
  for (const nlohmann::json& event : trace.at("traceEvents")) {  // names come first
    if (event.at("name") == "thread_name") {
      const std::string name = event.at("args").at("name");
      names[event.at("tid")] = name;
      rows[name];
    } else if (event.at("ph") == "X") {
      const double begin = event.at("ts"), took = event.at("dur");
      rows.at(names.at(event.at("tid"))).push_back({event.at("name"), begin, begin + took});
    }
  }
  return rows;
}

// every = 4, S = 2: what is sent in updates 4 and 8, or 5 and 9, is taken two updates later, all of it in the recording
// of updates 3 to 11. The first results of some kinds, of update 4, are inline.
TEST_P(AsyncTraining, TheTraceHasARowForEachWorker) {
  TrainSetup run = setup(13, "workers_traced", "fp32", keys(2));
  run.options.metrics.trace = 9;
  train(run, Host());
  const auto rows = rows_of(run.run_dir);
  ASSERT_EQ(rows.size(), 3u);
  const double last = rows.at("computation").back().end;
  double spans = 0;
  std::map<std::string, int> jobs;
  for (const char* row : {"refresh worker 0", "refresh worker 1"}) {
    double free = 0;
    for (const Job& job : rows.at(row)) {
      ++jobs[job.name];
      EXPECT_TRUE(job.name.starts_with("/optimizer/model.layers.")) << job.name;
      EXPECT_GE(job.begin, free - 1e-3) << row;  // rounded to what a double has of microseconds
      EXPECT_GE(job.end, job.begin);
      EXPECT_LE(job.begin, last);
      spans += job.end - job.begin;
      free = job.end;
    }
  }
  EXPECT_GE(jobs.size(), 14u);  // one side or two of each matrix
  for (const auto& [name, count] : jobs) EXPECT_EQ(count, jobs.begin()->second) << name;
  EXPECT_TRUE(jobs.begin()->second == 1 || jobs.begin()->second == 2);
  const std::vector<double> workers = read_history(run.run_dir).more.at("refresh_worker_s");
  const double taken = std::accumulate(workers.begin() + 2, workers.begin() + 11, 0.0);
  EXPECT_GT(taken, 0);
  EXPECT_GE(spans, 1e6 * taken);

  run = setup(6, "inline_traced", "fp32", "[optimizer.refresh]\nevery = 4\n");
  run.options.metrics.trace = 3;
  train(run, Host());
  EXPECT_EQ(rows_of(run.run_dir).size(), 1u);
}

std::string automatic(int workers) {
  return "[optimizer.refresh]\nevery = \"auto\"\nmode = \"async\"\nstaleness = 2\nworkers = " +
         std::to_string(workers) + "\n";
}
std::string newest(const std::string& run_dir) {
  return newest_complete(run_dir, false, [](const std::string&) {});
}
std::vector<std::int64_t> periods_in(const std::string& checkpoint) {
  return nlohmann::json::parse(CheckpointReader(checkpoint, false).run().extra).at("refresh_periods");
}

// Twice resumed, with other workers, which would have given other periods, and once: the same periods, the same bits.
TEST_P(AsyncTraining, AResumeKeepsAutomaticPeriods) {
  TrainSetup first = setup(4, "first", "fp32", automatic(1));
  train(first, Host());
  const std::string begin = newest(first.run_dir);
  const std::vector<std::int64_t> periods = periods_in(begin);
  EXPECT_EQ(periods.size(), 14u);
  EXPECT_GE(*std::min_element(periods.begin(), periods.end()), 3);
  TrainSetup once = setup(40, "once", "fp32", automatic(1));
  once.checkpoint = begin;
  once.fork = true;
  const std::string bits = train(once, Host());
  TrainSetup twice = setup(21, "twice", "fp32", automatic(4));
  twice.checkpoint = begin;
  twice.fork = true;
  train(twice, Host());
  twice = setup(40, "twice", "fp32", automatic(2));
  twice.checkpoint = newest(twice.run_dir);
  EXPECT_EQ(train(twice, Host()), bits);
  EXPECT_EQ(periods_in(newest(once.run_dir)), periods);
  EXPECT_EQ(periods_in(newest(twice.run_dir)), periods);
}

// Each matrix falls due by its own period, and its result is used two updates later: the ages say so.
TEST_P(AsyncTraining, AutomaticPeriodsAreThoseOfTheRefreshes) {
  constexpr std::int64_t steps = 120, resolved = 12, staleness = 2;
  const TrainSetup run = setup(steps, "auto", "fp32", automatic(2));
  train(run, Host());
  const std::vector<std::int64_t> periods = periods_in(newest(run.run_dir));
  const std::vector<TrainLine> lines = read_history(run.run_dir).train;
  int compared = 0, other[2] = {0, 0};
  for (std::int64_t t = 1; t <= steps; ++t) {
    for (const std::int64_t less : {0, 1}) {  // kinds whose first update does nothing count one update less
      double sum = 0;
      bool known = true;
      for (std::size_t i = 0; i < periods.size() && known; ++i) {
        std::int64_t from = t - less - staleness;
        while (from > resolved && (from + refresh_phase(static_cast<std::int64_t>(i), periods[i])) % periods[i] != 0)
          --from;
        known = from > resolved;
        sum += static_cast<double>(t - less - from);
      }
      if (!known) continue;
      ++compared;
      const double found = lines[static_cast<std::size_t>(t - 1)].preconditioner_age_mean;
      if (std::abs(found - sum / static_cast<double>(periods.size())) > 1e-9) ++other[less];
    }
  }
  EXPECT_GT(compared, 20) << "longest period " << *std::max_element(periods.begin(), periods.end());
  EXPECT_EQ(std::min(other[0], other[1]), 0);
}

// Counters that another thread moves on while the steps run.
TEST_P(AsyncTraining, MetricsTellTheEnergyWhereThereAreCounters) {
  TrainSetup run = setup(6, "energy", "fp32", keys(1));
  const fs::path zone = folder_ / "powercap/intel-rapl:0";
  fs::create_directories(zone);
  std::ofstream(zone / "name") << "package-0\n";
  std::ofstream(zone / "max_energy_range_uj") << "999999999999\n";
  std::ofstream(zone / "energy_uj") << "000000000000\n";
  run.energy.root = (folder_ / "powercap").string();
  std::atomic<bool> over = false;
  std::thread machine([&] {
    std::fstream counter(zone / "energy_uj", std::ios::in | std::ios::out);
    for (std::int64_t microjoules = 1; !over; microjoules += 10000)
      counter.seekp(0) << std::setw(12) << std::setfill('0') << microjoules << std::flush;
  });
  train(run, Host());
  over = true;
  machine.join();
  double joules = 0;
  const auto said = [](const RunHistory& history) {
    return history.start.empty() ? std::string() : history.start.back().second;
  };
  const RunHistory counted = read_history(run.run_dir);
  for (const TrainLine& line : counted.train) joules += line.energy_j.value();
  EXPECT_GT(joules, 0);
  double packages = 0;
  for (const double one : counted.more.at("energy_package_j")) packages += one;
  EXPECT_DOUBLE_EQ(packages, joules);
  EXPECT_EQ(counted.more.at("watts")[0], *counted.train[0].energy_j / counted.train[0].step_s);
  EXPECT_EQ(counted.more.count("processor_s"), 0u);
  EXPECT_EQ(said(counted).substr(0, 33), "package read (1 counter), dram no");
  run = setup(2, "no_energy", "fp32", keys(1));
  run.energy.root = (folder_ / "no_counters").string();
  train(run, Host());
  const RunHistory unknown = read_history(run.run_dir);
  for (const TrainLine& line : unknown.train) EXPECT_FALSE(line.energy_j.has_value());
  EXPECT_EQ(unknown.more.count("watts"), 0u);
  for (const double seconds : unknown.more.at("processor_s")) EXPECT_GE(seconds, 0);  // a tick of the clock is 4 ms
  EXPECT_NE(said(unknown).find("package not counted (no counter in " + run.energy.root), std::string::npos);
}

// Two stages in one process, synchronous and not: what each of them says, and what all of them make of it.
TEST_P(AsyncTraining, AgesOfStagesStandBesideThoseOfAll) {
  for (const char* schedule : {"1f1b", "async-1f1b"}) {
    TrainSetup run =
        setup(10, schedule, "fp32", keys(1) + "[parallel]\npp = 2\nschedule = \"" + std::string(schedule) + "\"\n");
    run.options.metrics.trace = 20;
    train(run, Host());
    const RunHistory history = read_history(run.run_dir);
    const auto counters = counters_of(run.run_dir);
    ASSERT_EQ(history.train.size(), 10u);
    const auto rows = rows_of(run.run_dir);
    EXPECT_EQ(rows.size(), 2u) << schedule;  // one worker, which has the jobs of both
    for (const char* layer : {"0", "1"}) {
      const std::vector<Job>& jobs = rows.at("refresh worker 0");
      const auto is_here = [&](const Job& job) {
        return job.name.starts_with(std::string("/optimizer/model.layers.") + layer);
      };
      EXPECT_GE(std::count_if(jobs.begin(), jobs.end(), is_here), 7) << schedule;
    }
    for (const char* stage : {"0", "1"}) {
      const auto& most = history.more.at(std::string("preconditioner_age_max_stage_") + stage);
      const auto& mean = history.more.at(std::string("preconditioner_age_mean_stage_") + stage);
      EXPECT_GT(*std::max_element(mean.begin(), mean.end()), 0) << schedule;
      EXPECT_EQ(last_of(counters.at(std::string("preconditioner age, mean ") + stage), 7), last_of(mean, 7))
          << schedule;
      for (std::size_t i = 0; i < mean.size(); ++i) {
        EXPECT_LE(mean[i], most[i]);
        EXPECT_LE(most[i], static_cast<double>(history.train[i].preconditioner_age_max));
      }
    }
    for (std::size_t i = 0; i < 10; ++i) {  // a layer lies on each stage
      const double both = (history.more.at("preconditioner_age_mean_stage_0")[i] +
                           history.more.at("preconditioner_age_mean_stage_1")[i]) /
                          2;
      EXPECT_NEAR(history.train[i].preconditioner_age_mean, both, 1e-12) << schedule;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AsyncTraining, testing::ValuesIn(asynchronous_kinds()), kind_test_name);

}  // namespace
}  // namespace sestina
