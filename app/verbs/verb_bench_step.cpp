// `sestina bench step`: medians of a training step, and its matrix products against what this machine reaches at best.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/command/verbs.hpp"
#include "app/start/dispatch.hpp"
#include "app/start/kokkos_session.hpp"
#include "app/train/run_data.hpp"
#include "app/train/step_report.hpp"
#include "app/verbs/bench.hpp"
#include "core/layout/tensor_sums.hpp"
#include "kernels/base/random.hpp"
#include "kernels/blas/machine_peak.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {
namespace {

// Windows of the deck's data, or random tokens when it names none.
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

struct StepBench {
  double step_s = 0, forward_backward_s = 0, optimizer_s = 0, matmul_s = 0, matmul_tflops = 0;
};

// Feeds the executor, and times what it does.
class BenchDriver final : public StepDriver {
 public:
  BenchDriver(const Options& options, const PassSetting& setting)
      : data_(options),
        rows_(static_cast<std::size_t>(setting.micro_batch)),
        length_(static_cast<std::size_t>(setting.sequence)),
        masked_(setting.mask_documents),
        tokens_(rows_ * (length_ + 1)),
        first_key_(rows_ * length_) {}

  BatchView next_batch() override {
    clock.end(Phase::forward_backward);
    for (std::size_t b = 0; b < rows_; ++b)
      data_.read(sample_++, &tokens_[b * (length_ + 1)], &first_key_[b * length_]);
    clock.end(Phase::data);
    return {tokens_.data(), masked_ ? first_key_.data() : nullptr};
  }
  double factor(std::int64_t) override { return 1; }
  bool accept(const StepSums&) override {  // a device is waited for in the sums: for its passes
    clock.end(Phase::forward_backward);
    return true;
  }

  PhaseClock clock;

 private:
  BenchData data_;
  std::size_t rows_, length_;
  bool masked_;
  std::uint64_t sample_ = 0;
  std::vector<std::int32_t> tokens_, first_key_;
};

// Steps with fixed hyper-parameters; the products are timed in a few more steps, because timing them costs fences.
template <class Exec, class T>
StepBench time_steps(const Exec& exec, const Options& options, const BenchArguments& arguments) {
  const auto alone = make_lone_communicator();
  Executor<Exec, T> executor(exec, options, *alone);
  executor.initialise(options.run.seed);
  executor.weights_changed();
  BenchDriver driver(options, executor.setting());
  PhaseClock& clock = driver.clock;
  int t = 0;
  const auto step = [&] {
    clock.start();
    executor.step(++t, driver);
    clock.end(Phase::optimizer);
  };

  for (int i = 0; i < arguments.warmup; ++i) step();
  std::vector<double> total, passes, updates, products, flops;
  for (int i = 0; i < arguments.steps; ++i) {
    step();
    total.push_back(clock.total());
    passes.push_back(clock[Phase::forward_backward]);
    updates.push_back(clock[Phase::optimizer]);
  }
  Gemm<Exec>& gemm = executor.stage().model().gemm();
  gemm.time_products(true);
  for (int i = 0; i < std::max(1, std::min(5, arguments.steps)); ++i) {
    gemm.take_count();
    step();
    const auto count = gemm.take_count();
    products.push_back(count.seconds);
    flops.push_back(count.flops);
  }
  StepBench result{median(total), median(passes), median(updates), median(products), 0};
  result.matmul_tflops = median(flops) / result.matmul_s * 1e-12;
  return result;
}

}  // namespace

int run_bench_step(const BenchArguments& arguments) {
  const Options options = bench_options(arguments);
  const KokkosSession kokkos(options.run.threads, arguments.kokkos, 1, options.optimizer.refresh_workers());
  const bool bf16_run = options.train.precision == TrainOptions::Precision::bf16;
  MachinePeak peak;
  std::uint64_t memory = 0;
  const StepBench bench = dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    using Exec = std::decay_t<decltype(exec)>;
    const StepBench result = time_steps<Exec, typename decltype(tag)::type>(exec, options, arguments);
    memory = peak_memory_bytes();  // ahead of the bounds, whose vectors are larger than a small model
    peak = measure_machine_peak<Exec>(exec);
    return result;
  });
  const double tokens = static_cast<double>(options.train.global_batch) * options.data.sequence_length;
  const double tflops = flops_per_token(options.model, options.data.sequence_length) * tokens / bench.step_s * 1e-12;
  const double peak_tflops = bf16_run ? peak.gemm_bf16_tflops : peak.gemm_fp32_tflops;
  if (arguments.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"precision", bf16_run ? "bf16" : "fp32"},
                                              {"parameters", parameter_count(options.model)},
                                              {"step_s", bench.step_s},
                                              {"forward_backward_s", bench.forward_backward_s},
                                              {"optimizer_s", bench.optimizer_s},
                                              {"tokens_per_s", tokens / bench.step_s},
                                              {"tflops", tflops},
                                              {"matmul_s", bench.matmul_s},
                                              {"matmul_share", bench.matmul_s / bench.step_s},
                                              {"matmul_tflops", bench.matmul_tflops},
                                              {"matmul_peak_tflops", peak_tflops},
                                              {"memory_bandwidth_gbs", peak.memory_gbs},
                                              {"memory_peak_bytes", memory},
                                              {"steps", arguments.steps}}
                           .dump());
    return 0;
  }
  fmt::print("{} parameters, {} x {} tokens, {}; medians of {} steps\n", parameter_count(options.model),
             options.train.global_batch, options.data.sequence_length, bf16_run ? "bf16" : "fp32", arguments.steps);
  fmt::print("step               {:9.1f} ms   {:.0f} tokens/s   {:.3f} TFLOP/s\n", bench.step_s * 1e3,
             tokens / bench.step_s, tflops);
  fmt::print("forward, backward  {:9.1f} ms\n", bench.forward_backward_s * 1e3);
  fmt::print("clip, update       {:9.1f} ms\n", bench.optimizer_s * 1e3);
  fmt::print(
      "matrix products    {:9.1f} ms   {:.0f} % of the step, {:.3f} TFLOP/s = {:.0f} % of the measured peak {:.3f}\n",
      bench.matmul_s * 1e3, 100 * bench.matmul_s / bench.step_s, bench.matmul_tflops,
      100 * bench.matmul_tflops / peak_tflops, peak_tflops);
  fmt::print("peak memory        {:9.1f} MB\n", static_cast<double>(memory) * 1e-6);
  return 0;
}

}  // namespace sestina
