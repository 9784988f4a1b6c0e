// What refreshes of several matrices of one shape could gain from being done as a batch, as a Markdown table:
//   bench_refresh_batches [sizes...]
// Microseconds of one job: by way of the pool, with one worker, as in training; the same jobs one after the other on
// one stream without a pool, which is all that a batch could save around them; and of power_qr's product K Q, n single
// ones next to one Gemm::batch. Medians of rounds made in turn; times are those on the clock, so nothing else should
// run.
#include <omp.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

#include "core/optimizer/refresh/refresh_workers.hpp"

namespace sestina {
namespace {

constexpr int rounds = 31;

double median_of(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + rounds / 2, values.end());
  return values[rounds / 2];
}

// Median seconds of each, over rounds in which all of them run.
template <std::size_t count>
std::array<double, count> medians(const std::array<std::function<void()>, count>& ways) {
  std::array<std::vector<double>, count> seconds;
  for (int round = -1; round < rounds; ++round)
    for (std::size_t i = 0; i < count; ++i) {
      const auto start = std::chrono::steady_clock::now();
      ways[i]();
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      if (round >= 0) seconds[i].push_back(spent.count());
    }
  std::array<double, count> result;
  for (std::size_t i = 0; i < count; ++i) result[i] = median_of(seconds[i]);
  return result;
}

// n factors (d, d) one after the other, with their bases and room for products and results.
struct Matrices {
  Matrices(std::size_t d, std::size_t n) : d(d), n(n) {
    for (std::vector<float>* x : {&factors, &bases, &products, &results}) x->resize(n * d * d);
    std::mt19937_64 engine(d);
    std::normal_distribution<float> normal;
    Gemm<Serial> gemm{Serial()};
    Solver<Serial> solver{Serial()};
    Workspace<Serial> workspace(
        bytes_taken<Serial>([&](auto& counter) { Solver<Serial>::declare_qr<float>(counter, d, d, d); }));
    for (std::size_t i = 0; i < n; ++i) {
      const Matrix<float, Serial> g = at(results, i), k = at(factors, i), q = at(bases, i);
      for (std::size_t j = 0; j < d * d; ++j) {
        g.data()[j] = normal(engine) / static_cast<float>(1 + j / d);  // singular values fall like 1/k
        q.data()[j] = normal(engine);
      }
      gemm.symmetric<float, float>(Op::none, 1, g, 0, k);
      solver.qr<float>(q, q, workspace);
    }
  }
  Matrix<float, Serial> at(std::vector<float>& x, std::size_t i) {
    return Matrix<float, Serial>(x.data() + i * d * d, d, d);
  }

  std::size_t d, n;
  std::vector<float> factors, bases, products, results;
};

RefreshJob<Serial> job_of(Matrices& x, std::size_t i, RefreshMethod method) {
  return {.method = method, .name = "job", .factor = x.at(x.factors, i), .basis = x.at(x.bases, i)};
}

// All jobs in one task: what a worker does that takes a whole batch at once.
struct Batch final : WorkerTask {
  Batch(Matrices& x, RefreshMethod method)
      : stream{.exec = exec,
               .gemm = Gemm<Serial>(exec),
               .workspace = Workspace<Serial>(
                   bytes_taken<Serial>([&](auto& counter) { declare_refresh<Serial>(counter, method, x.d); }))} {
    for (std::size_t i = 0; i < x.n; ++i) {
      jobs.push_back(job_of(x, i, method));
      jobs.back().new_basis = x.at(x.results, i);
    }
  }
  void run(std::size_t) override {
    omp_set_num_threads(1);  // as RefreshTask does
    for (const RefreshJob<Serial>& job : jobs)
      SESTINA_REQUIRE(compute_refresh(stream, job) == Refreshed::done, "a refresh failed");
  }
  Serial exec{Kokkos::NewInstance{}};
  Stream<Serial> stream;
  std::vector<RefreshJob<Serial>> jobs;
};

struct Times {
  double single = 0, batch = 0;  // seconds of a job
};

Times time_jobs(Matrices& x, RefreshMethod method) {
  RefreshWorkers workers({.workers = 1},
                         bytes_taken<Serial>([&](auto& counter) { declare_refresh<Serial>(counter, method, x.d); }),
                         x.n, false);
  std::vector<std::shared_ptr<RefreshTask>> tasks;
  for (std::size_t i = 0; i < x.n; ++i) {
    const RefreshTask::Memory memory{
        .basis = {Matrix<float, Serial>(x.at(x.results, i).data(), 1, x.d * x.d), nullptr}};
    tasks.push_back(std::make_shared<RefreshTask>(RefreshTask::Room{.basis = x.d * x.d}, memory, nullptr));
  }
  // The thread that submits is busy meanwhile, as one that computes is: nobody has to be woken.
  const auto finish = [&](WorkerTask& task) {
    while (!task.done()) continue;
    task.collect();
  };
  const auto single = [&] {
    for (std::size_t i = 0; i < x.n; ++i) {
      const StateArray<Serial> factor(x.at(x.factors, i), nullptr), basis(x.at(x.bases, i), nullptr);
      tasks[i]->prepare<Serial>({job_of(x, i, method), basis}, factor, basis);
      workers.submit(tasks[i]);
    }
    for (const auto& task : tasks) {
      finish(*task);
      SESTINA_REQUIRE(task->outcome() == Refreshed::done, "a refresh failed");
    }
  };
  const auto all = std::make_shared<Batch>(x, method);
  const auto batch = [&] {
    workers.pool()->submit(all);
    finish(*all);
  };
  const auto seconds = medians<2>({single, batch});
  const auto n = static_cast<double>(x.n);
  return {seconds[0] / n, seconds[1] / n};
}

struct ProductTimes {
  double single = 0, batch = 0;  // seconds of a product
};

ProductTimes time_products(Matrices& x) {
  Gemm<Serial> gemm{Serial()};
  const auto single = [&] {
    for (std::size_t i = 0; i < x.n; ++i)
      gemm.operator()<float, float>(Op::none, Op::none, 1, x.at(x.factors, i), x.at(x.bases, i), 0,
                                    x.at(x.products, i));
  };
  const auto batch = [&] {
    const std::size_t apart = x.d * x.d;
    gemm.batch<float, float>(x.n, {apart, apart, apart}, Op::none, Op::none, 1, x.at(x.factors, 0), x.at(x.bases, 0), 0,
                             x.at(x.products, 0));
  };
  const auto seconds = medians<2>({single, batch});
  const auto n = static_cast<double>(x.n);
  return {seconds[0] / n, seconds[1] / n};
}

void run(std::size_t d) {
  Matrices x(d, d <= 32 ? 64 : d <= 64 ? 32 : d <= 128 ? 16 : 8);
  std::printf("| %zu | %zu ", d, x.n);
  double qr = 0;
  for (const RefreshMethod method : {RefreshMethod::eigen_basis, RefreshMethod::power_qr}) {
    const Times times = time_jobs(x, method);
    std::printf("| %.2f | %.2f | %.1f %% ", 1e6 * times.single, 1e6 * times.batch,
                100 * (1 - times.batch / times.single));
    qr = times.single;
  }
  const ProductTimes products = time_products(x);
  std::printf("| %.2f | %.2f | %.1f %% |\n", 1e6 * products.single, 1e6 * products.batch,
              100 * (products.single - products.batch) / qr);
  std::fflush(stdout);
}

}  // namespace
}  // namespace sestina

int main(int argc, char** argv) {
  Kokkos::ScopeGuard kokkos(argc, argv);
  omp_set_num_threads(1);  // as a worker does
  std::printf(
      "| d | jobs | eigh: one by one, us | at once, us | saved | power_qr: one by one, us | at once, us | saved "
      "| K Q: single, us | batch, us | saved of power_qr |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {8, 16, 32, 64, 128, 256};
  for (const std::size_t d : sizes) sestina::run(d);
}
