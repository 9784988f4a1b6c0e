// optimizer.refresh.every = "auto" on ranks: all of them go by the slowest one's numbers, to the same periods.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "app/train/refresh_setup.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// Ranks: RefreshSpeed 2 4

TEST(RefreshSpeed, IsOneOfAllRanks) {
  const std::string path = std::filesystem::temp_directory_path() / fmt::format("sestina_speed_{}.txt", ::getpid());
  std::ofstream(path) << std::string(4000, 'a');
  for (const bool pipeline : {false, true}) {
    TrainingCase run = training_case("soap");
    Options& o = run.options;
    o.model.num_hidden_layers = 4;
    o.train.global_batch = 8;
    o.parallel.dp = pipeline ? 1 : world().size();
    o.parallel.pp = pipeline ? world().size() : 1;
    o.optimizer.matrix->refresh_staleness = 2;
    o.optimizer.refresh.asynchronous = o.optimizer.refresh.automatic = o.optimizer.refresh.stagger = true;
    o.data.source.push_back({});
    o.data.source.back().format = DataSource::Format::text;
    o.data.source.back().path = path;
    const SampleSet samples(o.data, Split::train, o.model.vocab_size, 1, nullptr);
    TypedExecutor<Host, float> executor(Host(), make_plan({o, world().size()}), world());
    executor.initialise(5);
    executor.weights_changed();
    const RefreshSpeed speed = measure_speed(executor, samples, o, world());
    EXPECT_GT(speed.step_s, 0);
    EXPECT_GT(speed.flops, 1e6);
    const std::vector<std::int64_t> periods = fit_periods(executor.plan(), speed).of;
    ASSERT_EQ(periods.size(), 28u);
    std::string mine(reinterpret_cast<const char*>(periods.data()), periods.size() * sizeof periods[0]);
    for (const std::string& other : world().all_gather(mine)) EXPECT_EQ(other, mine);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace sestina
