#include "app/train/refresh_setup.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "app/train/evaluation.hpp"
#include "app/train/step_report.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/memory/device_store.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/refresh/auto_period.hpp"
#include "io/store/block_file.hpp"

namespace sestina {

namespace {

constexpr double measuring_s = 10;  // seconds for all shapes; what small ones leave goes to those after them

// Returns one matrix of each shape, those whose refresh takes least first.
std::vector<RefreshRate> shapes_of(const Options& options) {
  std::map<double, std::vector<RefreshRate>> by_work;
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (const TensorSpec& spec : tensor_specs(options.model)) {
    if (!is_matrix_optimized(spec, options.optimizer)) continue;
    for (const MatrixPart& part : matrix_parts(spec, options.optimizer))
      if (seen.insert({part.rows, part.cols}).second)
        by_work[refresh_flops(*options.optimizer.matrix, part.rows, part.cols)].push_back({part.rows, part.cols});
  }
  std::vector<RefreshRate> shapes;
  for (const auto& [work, of_it] : by_work) shapes.insert(shapes.end(), of_it.begin(), of_it.end());
  return shapes;
}

}  // namespace

RefreshSpeed agreed_speed(double step_s, const Options& options, Communicator& world) {
  RefreshSpeed speed{step_s, std::numeric_limits<double>::infinity(), shapes_of(options)};
  std::vector<double> numbers = {step_s};
  const double end = now_seconds() + measuring_s;
  for (std::size_t i = 0; i < speed.rates.size(); ++i) {
    const double most = (end - now_seconds()) / static_cast<double>(speed.rates.size() - i);
    const RefreshRate rate =
        measure_refresh_rate(*options.optimizer.matrix, speed.rates[i].rows, speed.rates[i].cols, most);
    for (const double number :
         {rate.flops, static_cast<double>(rate.measured_rows), static_cast<double>(rate.measured_cols)})
      numbers.push_back(number);
  }
  world.all_reduce(numbers.data(), numbers.size(), Reduction::min);
  speed.step_s = numbers[0];
  for (std::size_t i = 0; i < speed.rates.size(); ++i) {
    RefreshRate& rate = speed.rates[i];
    const double* mine = &numbers[1 + 3 * i];
    rate.flops = mine[0];
    rate.measured_rows = static_cast<std::int64_t>(mine[1]);
    rate.measured_cols = static_cast<std::int64_t>(mine[2]);
    speed.flops = std::min(speed.flops, rate.flops);
  }
  return speed;
}

RefreshSpeed measure_speed(Executor& executor, const SampleSet& training, const Options& options, Communicator& world) {
  double step_s = 0;
  const int micros = static_cast<int>(options.train.global_batch / executor.options().micro_batch);
  const double tokens = static_cast<double>(options.train.global_batch) * options.data.sequence_length;
  for (int round = 0; round < 2; ++round) {  // the first round allocates
    const double start = now_seconds();
    const auto seen = evaluate_loss(executor, training, micros, [] { return false; });
    step_s = 3 * (now_seconds() - start) * tokens / static_cast<double>(seen->tokens);
  }
  return agreed_speed(step_s, options, world);
}

void use_periods(Executor& executor, const RefreshPeriods& periods) {
  for (PipelineStage* stage : executor.runs()) stage->optimizer_control().set_refresh_periods(periods.of);
}

void use_staleness(Executor& executor, const RefreshLag& lag) {
  for (PipelineStage* stage : executor.runs()) stage->optimizer_control().set_refresh_staleness(lag.updates);
}

RefreshExecutors agreed_executors(const Executor& executor, RefreshSpeed speed, const RefreshPeriods& periods) {
  if (const auto declared = declared_flops(executor.plan().input.machine))
    speed = {.step_s = speed.step_s, .flops = *declared};
  RefreshExecutors executors = choose_executors(executor.plan(), speed, periods);
  spdlog::info("refresh    {}: an update takes {:.3g} s", to_text(executors), speed.step_s);
  for (const std::string& line : table_lines(executors)) spdlog::info("           {}", line);
  return executors;
}

void use_executors(Executor& executor, const RefreshExecutors& executors) {
  for (PipelineStage* stage : executor.runs()) stage->optimizer_control().set_refresh_executors(executors.in_update);
}

namespace {

std::shared_ptr<BlockStore> make_file(const RefreshOptions& refresh, const std::string& run_dir, int rank) {
  const std::string folder = refresh.path.empty() ? run_dir + "/store" : refresh.path;
  return std::make_shared<BlockFile>(BlockFile::Options{.path = fmt::format("{}/rank_{:05}.blocks", folder, rank),
                                                        .queue_depth = refresh.queue_depth,
                                                        .most = static_cast<std::uint64_t>(refresh.nvme_bytes)});
}

// Returns where a block lies between its uses, by its name "/optimizer/<HF name>/<field>".
std::function<DeviceStore::Place(std::string_view)> places_of_blocks(const OptimizerOptions& optimizer) {
  const std::vector<std::string> fields =
      optimizer.matrix ? paged_fields(*find_matrix_kind(optimizer.matrix->kind), *optimizer.matrix)
                       : std::vector<std::string>();
  return [optimizer, fields](std::string_view name) {
    const std::string_view field = field_of_block(name.substr(name.rfind('/') + 1));
    const bool is_moment = std::find(fields.begin(), fields.end(), field) == fields.end();
    using enum DeviceStore::Place;
    const Tier tier = is_moment ? optimizer.state_tier : optimizer.matrix->tier_of(field);
    return tier == Tier::nvme ? below : tier == Tier::unified ? unified : host;
  };
}

std::shared_ptr<Pager> make_device_tier(const OptimizerOptions& optimizer, std::shared_ptr<BlockStore> file) {
  const RefreshOptions& refresh = optimizer.refresh;
  std::shared_ptr<DeviceBlocks> device = make_device_blocks();
  const DeviceStore::Options setting{.place = places_of_blocks(optimizer),
                                     .host_bytes = static_cast<std::size_t>(refresh.host_bytes),
                                     .warn = [](const std::string& message) { spdlog::warn("{}", message); }};
  auto store = std::make_shared<DeviceStore>(device, std::move(file), setting);
  return std::make_shared<Pager>(std::move(store),
                                 Pager::Options{.most = static_cast<std::size_t>(refresh.device_bytes),
                                                .timeout = refresh.timeout,
                                                .key = "optimizer.refresh.device_bytes",
                                                .memory = "device"},
                                 std::move(device));
}

}  // namespace

std::shared_ptr<Pager> make_tier(const Options& options, const std::string& run_dir, int rank, MemorySpace memory) {
  const OptimizerOptions& optimizer = options.optimizer;
  if (!optimizer.pages_any(memory)) return nullptr;
  const RefreshOptions& refresh = optimizer.refresh;
  std::shared_ptr<BlockStore> file = optimizer.has_tier(Tier::nvme) ? make_file(refresh, run_dir, rank) : nullptr;
  if (memory == MemorySpace::device) return make_device_tier(optimizer, std::move(file));
  return std::make_shared<Pager>(std::move(file), Pager::Options{.most = static_cast<std::size_t>(refresh.host_bytes),
                                                                 .timeout = refresh.timeout});
}

void open_tier(Pager& pager) {
  pager.open();
  spdlog::info("optimizer state in {}; at most {:.1f} MiB of them in memory", pager.describe(),
               static_cast<double>(std::min(pager.limit(), pager.bytes())) / (1 << 20));
}

std::shared_ptr<Pager> open_tier_of(Executor& executor, const Options& options, const std::string& run_dir, int rank,
                                    MemorySpace memory) {
  const std::shared_ptr<Pager> tier = make_tier(options, run_dir, rank, memory);
  if (!tier) return tier;
  executor.page_to(tier);
  open_tier(*tier);
  return tier;
}

}  // namespace sestina
