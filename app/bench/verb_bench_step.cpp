// `sestina bench step`: medians of a training step, and its matrix products against what this machine reaches at best.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/bench/bench.hpp"
#include "app/bench/machine_rates.hpp"
#include "app/command/verbs.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/refresh_setup.hpp"
#include "app/train/run_data.hpp"
#include "app/train/step_report.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/machine_speed.hpp"
#include "kernels/base/random.hpp"
#include "parallel/stage/make_stages.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {
namespace {

// The source of windows: the deck's data, or random tokens when it names none.
class BenchData {
 public:
  explicit BenchData(const Options& options)
      : vocab_(static_cast<std::uint64_t>(options.model.vocab_size)), length_(options.data.sequence_length) {
    if (options.data.source.empty()) return;
    tokenizer_ = open_tokenizer(options.data);
    set_ = std::make_unique<SampleSet>(open_samples(options, Split::train, tokenizer_.get()));
  }
  void read(std::uint64_t sample, std::int32_t* tokens, std::int32_t* first_key) const {
    if (set_) return set_->read(sample, tokens, first_key);
    for (int t = 0; t <= length_; ++t)
      tokens[t] = static_cast<std::int32_t>(philox(1, sample, static_cast<std::uint64_t>(t))[0] % vocab_);
    std::fill_n(first_key, length_, 0);
  }

 private:
  std::uint64_t vocab_;
  int length_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<SampleSet> set_;
};

// The medians of a step; with several ranks, of the times of the slowest rank in each step.
struct StepBench {
  double step_s = 0, forward_backward_s = 0, reduce_s = 0, optimizer_s = 0, gather_s = 0;
  struct Products {  // the products of one rank
    double seconds = 0, tflops = 0, peak_tflops = 0;
  } products;  // those of the rank that multiplies longest
  double memory_gbs = 0, memory_bytes = 0;
  RefreshPeriods periods = {};  // with optimizer.refresh.every = "auto"
  RefreshLag lag = {};          // with staleness = "auto"
};

// Serves this rank's share of the source.
class BenchBatches final : public Batches {
 public:
  BenchBatches(const Options& options, const PassOptions& setting, const BatchShare& share)
      : data_(options),
        share_(share),
        rows_(static_cast<std::size_t>(setting.micro_batch)),
        length_(static_cast<std::size_t>(setting.sequence)),
        masked_(setting.mask_documents),
        tokens_(rows_ * (length_ + 1)),
        first_key_(rows_ * length_) {}

  BatchView next() override {
    const std::int64_t micro =
        micro_ / share_.count * share_.all + share_.number(static_cast<int>(micro_ % share_.count));
    ++micro_;
    for (std::size_t b = 0; b < rows_; ++b)
      data_.read(static_cast<std::uint64_t>(micro) * rows_ + b, &tokens_[b * (length_ + 1)], &first_key_[b * length_]);
    return {tokens_.data(), masked_ ? first_key_.data() : nullptr};
  }

 private:
  BenchData data_;
  BatchShare share_;
  std::size_t rows_, length_;
  bool masked_;
  std::int64_t micro_ = 0;  // number of this rank's micro-batch
  std::vector<std::int32_t> tokens_, first_key_;
};

// Returns medians over the steps, each as its slowest rank saw it. mine: the steps of this rank. Collective.
StepBench medians(const std::vector<RankStep>& mine, Communicator& world) {
  const std::size_t steps = mine.size(), ranks = static_cast<std::size_t>(world.size());
  std::vector<RankStep> all(steps * ranks);
  world.all_gather(mine.data(), steps * sizeof(RankStep), all.data());
  std::vector<std::vector<double>> seconds(mine.front().seconds.size());
  for (std::size_t step = 0; step < steps; ++step) {
    RankStep slowest;
    for (std::size_t rank = 0; rank < ranks; ++rank) slowest.add(all[rank * steps + step]);
    for (std::size_t phase = 0; phase < seconds.size(); ++phase) seconds[phase].push_back(slowest.seconds[phase]);
  }
  const auto of = [&](Phase phase) { return median(seconds[static_cast<std::size_t>(phase)]); };
  return {of(Phase::count),     of(Phase::forward_backward), of(Phase::reduce),
          of(Phase::optimizer), of(Phase::gather),           {}};
}

// Times the products of all stages of this rank, in only a few steps, because timing them costs fences.
StepBench::Products time_products(Executor& executor, int steps, const std::function<void()>& step) {
  const auto take = [&] {
    ProductCount all;
    for (PipelineStage* stage : executor.runs()) {
      const ProductCount count = stage->take_products();
      all.seconds += count.seconds;
      all.flops += count.flops;
    }
    return all;
  };
  for (PipelineStage* stage : executor.runs()) stage->time_products(true);
  std::vector<double> seconds, flops;
  for (int i = 0; i < steps; ++i) {
    take();
    step();
    const auto count = take();
    seconds.push_back(count.seconds);
    flops.push_back(count.flops);
  }
  return {median(seconds), median(flops) / median(seconds) * 1e-12, 0};
}

// Sets periods with optimizer.refresh.every = "auto", S with staleness = "auto", and who refreshes with executor =
// "auto", where one of them is. The first step makes first results, and allocates: the second one is timed.
void set_refreshes(StepBench& bench, Executor& executor, const Options& options, Communicator& world,
                   const std::function<void()>& step) {
  const RefreshOptions& refresh = options.optimizer.refresh;
  if (!refresh.automatic && !refresh.fits_staleness && !refresh.chooses_executor) return;
  step();
  const double start = now_seconds();
  step();
  const RefreshSpeed speed = agreed_speed(now_seconds() - start, options, world);
  if (refresh.automatic) use_periods(executor, bench.periods = fit_periods(executor.plan(), speed));
  if (refresh.fits_staleness) use_staleness(executor, bench.lag = fit_staleness(executor.plan(), speed));
  if (refresh.chooses_executor) use_executors(executor, agreed_executors(executor, speed, bench.periods));
}

// Runs steps with fixed hyper-parameters.
StepBench time_steps(const StepOptions& run, const BenchArguments& arguments, Runtime& runtime) {
  const Options& options = run.options;
  const std::unique_ptr<StageMaker> stages = make_stages(options.run.space, options.train.precision);
  Executor executor(*stages, run.plan, runtime.world());
  executor.initialise(options.run.seed);
  runtime.phase("opening the store of optimizer state",
                [&] { open_tier_of(executor, options, ".", runtime.rank(), stages->memory()); });
  executor.weights_changed();
  std::unique_ptr<BenchBatches> batches;
  runtime.phase("opening the data",
                [&] { batches = std::make_unique<BenchBatches>(options, executor.options(), executor.share()); });
  runtime.set_timeout(options.run.abort_timeout);
  PhaseClock& clock = executor.clock();
  int t = 0;
  const auto step = [&] {
    executor.take_seconds();
    clock.start();
    if (executor.backward(++t, 1, *batches).sums) {  // one rank waits in it for a device's passes
      clock.end(runtime.size() > 1 ? Phase::reduce : Phase::forward_backward);
      executor.update();
    }
    executor.exchange();
    clock.end(Phase::optimizer);
    const auto waits = executor.take_seconds();
    clock.move_waits(waits.gather, waits.reduce, waits.homes, waits.update);
  };
  StepBench chosen;
  set_refreshes(chosen, executor, options, runtime.world(), step);
  for (int i = 0; i < arguments.warmup; ++i) step();
  std::vector<RankStep> mine;
  for (int i = 0; i < arguments.steps; ++i) {
    step();
    mine.push_back({});
    mine.back().seconds = clock.seconds();
  }
  StepBench result = medians(mine, runtime.world());
  result.periods = std::move(chosen.periods);
  result.lag = chosen.lag;
  result.products = time_products(executor, std::max(1, std::min(5, arguments.steps)), step);
  executor.finish_steps();
  executor.finish_gather();
  return result;
}

// Brings the ranks' own numbers together: the rank that multiplies longest is compared with its own peak.
void join(StepBench& bench, Communicator& world) {
  std::vector<StepBench::Products> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&bench.products, sizeof bench.products, all.data());
  bench.products =
      *std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  world.all_reduce(&bench.memory_bytes, 1, Reduction::max);
  world.all_reduce(&bench.memory_gbs, 1, Reduction::min);
}

void print(const StepBench& bench, const Options& options, const BenchArguments& arguments, int ranks) {
  const bool bf16_run = options.train.precision == TrainOptions::Precision::bf16;
  const double tokens = static_cast<double>(options.train.global_batch) * options.data.sequence_length;
  const double tflops = flops_per_token(options) * tokens / bench.step_s * 1e-12;
  if (arguments.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"precision", bf16_run ? "bf16" : "fp32"},
                                              {"ranks", ranks},
                                              {"parameters", parameter_count(options.model)},
                                              {"step_s", bench.step_s},
                                              {"forward_backward_s", bench.forward_backward_s},
                                              {"reduce_s", bench.reduce_s},
                                              {"optimizer_s", bench.optimizer_s},
                                              {"gather_s", bench.gather_s},
                                              {"tokens_per_s", tokens / bench.step_s},
                                              {"tflops", tflops},
                                              {"matmul_s", bench.products.seconds},
                                              {"matmul_share", bench.products.seconds / bench.step_s},
                                              {"matmul_tflops", bench.products.tflops},
                                              {"matmul_peak_tflops", bench.products.peak_tflops},
                                              {"memory_bandwidth_gbs", bench.memory_gbs},
                                              {"memory_peak_bytes", static_cast<std::uint64_t>(bench.memory_bytes)},
                                              {"refresh_every", bench.periods.of},
                                              {"refresh_staleness", bench.lag.updates},
                                              {"steps", arguments.steps}}
                           .dump());
    return;
  }
  const ParallelOptions& parallel = options.parallel;
  const int in_stage = parallel.dp * parallel.tp;
  fmt::print("{} parameters, {} x {} tokens, {}; medians of {} steps{}\n", parameter_count(options.model),
             options.train.global_batch, options.data.sequence_length, bf16_run ? "bf16" : "fp32", arguments.steps,
             ranks == 1
                 ? ""
                 : fmt::format(" of the slowest of {} x {} x {} ranks", parallel.dp, parallel.tp, ranks / in_stage));
  fmt::print("step               {:9.1f} ms   {:.0f} tokens/s   {:.3f} TFLOP/s\n", bench.step_s * 1e3,
             tokens / bench.step_s, tflops);
  fmt::print("forward, backward  {:9.1f} ms\n", bench.forward_backward_s * 1e3);
  if (ranks > 1) fmt::print("sums of gradients  {:9.1f} ms\n", bench.reduce_s * 1e3);
  fmt::print("clip, update       {:9.1f} ms\n", bench.optimizer_s * 1e3);
  if (ranks > 1) fmt::print("gathered weights   {:9.1f} ms\n", bench.gather_s * 1e3);
  fmt::print(
      "matrix products    {:9.1f} ms   {:.0f} % of the step, {:.3f} TFLOP/s = {:.0f} % of the measured peak {:.3f}\n",
      bench.products.seconds * 1e3, 100 * bench.products.seconds / bench.step_s, bench.products.tflops,
      100 * bench.products.tflops / bench.products.peak_tflops, bench.products.peak_tflops);
  fmt::print("peak memory        {:9.1f} MB\n", bench.memory_bytes * 1e-6);
  if (options.optimizer.refresh.automatic) fmt::print("refreshes          {}\n", to_text(bench.periods));
  if (options.optimizer.refresh.fits_staleness) fmt::print("refreshes          {}\n", to_text(bench.lag));
}

int bench_on_ranks(const BenchArguments& arguments, Runtime& runtime) {
  const StepOptions run = bench_step_options(arguments, runtime);
  const Options& options = run.options;
  const auto session =
      start_kokkos(runtime, options.run.threads, arguments.kokkos, options.optimizer.refresh_workers());
  runtime.begin_phase("building the model");
  StepBench all = time_steps(run, arguments, runtime);
  // The step is measured before the bounds, whose vectors are larger than a small model.
  all.memory_bytes = static_cast<double>(peak_memory_bytes());
  const MachinePeak peak = measure_machine_peak(options.run.space);
  all.products.peak_tflops = peak.gemm_tflops(options.train.precision == TrainOptions::Precision::bf16);
  all.memory_gbs = peak.memory_gbs;
  if (!arguments.machine.empty())
    write_machine(runtime, arguments.machine, measure_rates(options, runtime, peak, arguments.machine),
                  options.train.precision);
  join(all, runtime.world());
  if (runtime.is_first()) print(all, options, arguments, runtime.size());
  return 0;
}

}  // namespace

int run_bench_step(const BenchArguments& arguments, const RankSource& ranks) {
  Runtime runtime(ranks, find_start_timeout(arguments.deck));
  return run_on_ranks(runtime, [&] { return bench_on_ranks(arguments, runtime); });
}

}  // namespace sestina
