// `sestina check`: the kernels that a deck calls for, on this machine, compared with their plain references; one table.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/command/verbs.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/run_deck.hpp"
#include "app/watch/kernel_checks.hpp"
#include "core/machine_speed.hpp"
#include "kernels/model/device/attention_fused.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

double share_of_peak(const KernelCheck& check, const MachinePeak& peak, bool bf16) {
  if (check.flops > 0) return check.flops * 1e-12 / check.seconds / peak.gemm_tflops(bf16);
  return check.bytes * 1e-9 / check.seconds / peak.memory_gbs;
}

Json to_json(const std::vector<RankChecks>& ranks, const MachinePeak& peak, bool bf16) {
  Json list = Json::array();
  for (const RankChecks& rank : ranks) {
    Json checks = Json::array();
    for (const KernelCheck& c : rank.checks) {
      checks.push_back(to_json(c));
      checks.back().update({{"holds", c.holds()}, {"of_bound", share_of_peak(c, peak, bf16)}});
    }
    list.push_back({{"host", rank.host}, {"machine", rank.machine}, {"judged", rank.judged}, {"checks", checks}});
  }
  return {{"holds", wrong_kernels(ranks).empty()}, {"ranks", list}};
}

void print_table(const std::vector<RankChecks>& ranks, const MachinePeak& peak, bool bf16) {
  const RankChecks& first = ranks.front();
  fmt::print("{}: products {:.3g} TFLOP/s, memory {:.3g} GB/s\n", first.machine, peak.gemm_tflops(bf16),
             peak.memory_gbs);
  if (!first.judged) fmt::print("this device computes nothing: only that all kernels run is checked\n");
  fmt::print("{:<30} {:<26} {:>9} {:>9} {:>6} {:>10} {:>9}\n", "kernel", "shape", "error", "allowed", "bits", "ms",
             "of peak");
  for (const KernelCheck& c : first.checks)
    fmt::print("{:<30} {:<26} {:>9.2g} {:>9.2g} {:>6} {:>10.3f} {:>7.0f} % {}\n", c.kernel, c.shape, c.error, c.bound,
               c.repeats ? "same" : "OTHER", c.seconds * 1e3, 100 * share_of_peak(c, peak, bf16),
               c.holds() || !first.judged ? "" : "WRONG");
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const auto wrong =
        std::count_if(ranks[r].checks.begin(), ranks[r].checks.end(), [](const KernelCheck& c) { return !c.holds(); });
    fmt::print("rank {} on {} ({}): {} checks, {} wrong\n", r, ranks[r].host, ranks[r].machine, ranks[r].checks.size(),
               ranks[r].judged ? wrong : 0);
  }
}

}  // namespace

int run_check(const CheckArguments& arguments, const RankSource& source) {
  Runtime runtime(source, RunOptions().start_timeout);
  return run_on_ranks(runtime, [&] {
    warn_on_stderr(runtime);
    Options options;
    runtime.phase("reading the deck", [&] {
      Deck deck = layered_deck(arguments.deck);
      options = Options::read(deck);
      deck.finish();
    });
    const auto session = start_kokkos(runtime, options.run.threads, arguments.kokkos, 0);
    runtime.begin_phase("checking the kernels");
    const MachinePeak peak = measure_machine_peak(options.run.space);
    const bool bf16 = options.train.precision == TrainOptions::Precision::bf16;
    const std::vector<RankChecks> ranks = check_ranks(options, runtime);
    if (runtime.is_first()) {
      if (!arguments.json && may_have_attention(options))
        fmt::print("attention by {}\n", fused_attention::description());
      if (arguments.json)
        fmt::print("{}\n", to_json(ranks, peak, bf16).dump(2));
      else
        print_table(ranks, peak, bf16);
    }
    const std::vector<std::string> wrong = wrong_kernels(ranks);
    runtime.together([&] {
      if (!wrong.empty()) fail(ExitCode::unavailable, "wrong on this machine: {}", fmt::join(wrong, "; "));
    });
    return static_cast<int>(ExitCode::done);
  });
}

}  // namespace sestina
