// The kernels of a step compared, on the space where they run, with what their formulas say: each vendor library and
// each kernel of our own, on the shapes of the deck's model, once more with the same input for the same bits, and
// timed. The references are plain loops on the host, in double. Here is what the checks share: buffers with their
// copies on the host, and the trial of one kernel.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/check/kernel_check.hpp"
#include "core/deck/options.hpp"
#include "kernels/base/threads.hpp"
#include "kernels/blas/bits.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

// The distance from 1 to the next number of a stored type.
template <class T>
inline constexpr double spacing = std::numeric_limits<T>::epsilon();
template <>
inline constexpr double spacing<bf16> = 0x1p-7;

// A matrix in the memory of a space, with what it begins with on the host.
template <class Exec, class S>
class CheckField {
 public:
  using Stored = S;
  CheckField(std::size_t rows, std::size_t cols)
      : rows_(rows),
        cols_(cols),
        device_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::check"), rows * cols),
        start_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::check"), rows * cols),
        now_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::check"), rows * cols) {}

  // Sets element i to value(i) in both memories; what a kernel does to it is undone by reset().
  template <class Value>
  void fill(const Value& value) {
    Kokkos::parallel_for("sestina::check", Kokkos::RangePolicy<Host>(0, size()),
                         [start = start_, &value](std::size_t i) { start(i) = S(value(i)); });
    Host().fence();
    reset();
  }
  void reset() { Kokkos::deep_copy(device_, start_); }
  void fetch() { Kokkos::deep_copy(now_, device_); }

  std::size_t size() const { return rows_ * cols_; }
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  Matrix<S, Exec> matrix() const { return Matrix<S, Exec>(device_.data(), rows_, cols_); }
  Vector<S, Exec> vector() const { return Vector<S, Exec>(device_.data(), size()); }
  // What it begins with, as the kernel reads it, and what was fetched last.
  double start(std::size_t i) const { return static_cast<double>(start_(i)); }
  double start(std::size_t row, std::size_t col) const { return start(row * cols_ + col); }
  double now(std::size_t i) const { return static_cast<double>(now_(i)); }
  const S* fetched() const { return now_.data(); }

 private:
  std::size_t rows_, cols_;
  Kokkos::View<S*, typename Exec::memory_space> device_;
  Kokkos::View<S*, Kokkos::HostSpace> start_, now_;
};

// One output of a kernel: what it is compared with. fetch copies it to the host; bits are those of the copy.
struct CheckedOutput {
  std::string name;
  double bound = 0;
  std::function<void()> reset, fetch;
  std::function<double()> error;  // of what was fetched; infinite where a number is not finite
  const void* data = nullptr;
  std::size_t bytes = 0;
};

// An output of which `error` says how wrong it is.
template <class Exec, class S>
CheckedOutput measured(const char* name, CheckField<Exec, S>& field, double bound, std::function<double()> error) {
  return {name,
          bound,
          [&field] { field.reset(); },
          [&field] { field.fetch(); },
          std::move(error),
          field.fetched(),
          field.size() * sizeof(S)};
}

// An output that is compared with these numbers, at these places (none: all of it), relative to `scale` (0: the largest
// number). Elements that are not written stay NaN, if the field was begun with that.
template <class Exec, class S>
CheckedOutput expected(const char* name, CheckField<Exec, S>& field, double bound, std::vector<double> numbers,
                       std::vector<std::size_t> places = {}, double scale = 0) {
  if (scale == 0)
    for (const double number : numbers) scale = std::max(scale, std::abs(number));
  return measured(name, field, bound, [&field, numbers = std::move(numbers), places = std::move(places), scale] {
    double largest = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double now = field.now(places.empty() ? i : places[i]);
      if (!std::isfinite(now)) return std::numeric_limits<double>::infinity();
      largest = std::max(largest, std::abs(now - numbers[i]));
    }
    return scale > 0 ? largest / scale : largest;
  });
}

// Numbers between -1 and 1 by a seed.
struct UniformNumbers {
  std::uint64_t seed;
  float operator()(std::size_t i) const {
    return static_cast<float>(static_cast<double>(split_mix(seed, i) >> 11) * 0x1p-52 - 1);
  }
};
struct NoNumbers {
  float operator()(std::size_t) const { return std::numeric_limits<float>::quiet_NaN(); }
};

// Makes fields and tries kernels, of which it keeps the results.
template <class Exec>
class Checker {
 public:
  explicit Checker(const Exec& exec) : exec_(exec) {}
  const Exec& exec() const { return exec_; }

  template <class S>
  CheckField<Exec, S> numbers(std::size_t rows, std::size_t cols) {
    CheckField<Exec, S> field(rows, cols);
    field.fill(UniformNumbers{++seed_});
    return field;
  }
  template <class S>
  CheckField<Exec, S> blank(std::size_t rows, std::size_t cols) const {
    CheckField<Exec, S> field(rows, cols);
    field.fill(NoNumbers{});
    return field;
  }

  struct Work {
    std::string kernel, shape;
    double flops = 0, bytes = 0;
  };
  // Calls the kernel on the outputs as they begin, compares them, and calls it once more from the same beginning; then
  // three times for the time.
  template <class Kernel>
  void check(const Work& work, std::vector<CheckedOutput> outputs, const Kernel& kernel) {
    KernelCheck result{work.kernel, work.shape, "", 0, 0, true, 0, work.flops, work.bytes};
    std::vector<std::vector<std::byte>> first;
    call(outputs, kernel);
    double worst = -1;
    for (const CheckedOutput& output : outputs) {
      const auto* begin = static_cast<const std::byte*>(output.data);
      first.emplace_back(begin, begin + output.bytes);
      const double error = output.error();
      const double share = output.bound > 0 ? error / output.bound : (error > 0 ? error * 1e300 : 0);
      if (share <= worst) continue;
      worst = share;
      result.output = output.name;
      result.error = error;
      result.bound = output.bound;
    }
    call(outputs, kernel);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      result.repeats = result.repeats && std::memcmp(first[i].data(), outputs[i].data, outputs[i].bytes) == 0;
    result.seconds = time(kernel);
    results_.push_back(std::move(result));
  }

  std::vector<KernelCheck> take_results() { return std::move(results_); }

 private:
  template <class Kernel>
  void call(const std::vector<CheckedOutput>& outputs, const Kernel& kernel) {
    for (const CheckedOutput& output : outputs) output.reset();
    kernel();
    exec_.fence();
    for (const CheckedOutput& output : outputs) output.fetch();
  }
  template <class Kernel>
  double time(const Kernel& kernel) {
    std::array<double, 3> seconds;
    for (double& each : seconds) {
      const double start = now_seconds();
      kernel();
      exec_.fence();
      each = now_seconds() - start;
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[1];
  }

  Exec exec_;
  std::uint64_t seed_ = 0;
  std::vector<KernelCheck> results_;
};

// What all checks know of the deck.
template <class Exec>
struct CheckContext {
  Checker<Exec>& checker;
  const Options& options;
  int batch = 1, sequence = 1;  // B, T of the shapes
  std::size_t rows() const { return static_cast<std::size_t>(batch) * static_cast<std::size_t>(sequence); }
  const ModelConfig& model() const { return options.model; }
};
inline std::size_t extent(std::int64_t n) { return static_cast<std::size_t>(n); }
// Tokens of the tables: all, or so many that copies of a table in fp32 fit anywhere.
inline std::size_t checked_vocabulary(const ModelConfig& model) {
  return std::min<std::size_t>(extent(model.vocab_size), (std::size_t{1} << 27) / extent(model.hidden_size));
}

// The checks, by their files. T: the type that the run computes in.
template <class Exec, class T>
void check_products(const CheckContext<Exec>&);
template <class Exec, class T>
void check_attention(const CheckContext<Exec>&);
template <class Exec, class T>
void check_norms(const CheckContext<Exec>&);
template <class Exec, class T>
void check_rows(const CheckContext<Exec>&);
template <class Exec, class T>
void check_updates(const CheckContext<Exec>&);
template <class Exec, class T>
void check_batches(const CheckContext<Exec>&);
template <class Exec, class T>
void check_solvers(const CheckContext<Exec>&);
template <class Exec, class T>
void check_rotations(const CheckContext<Exec>&);  // none without them
template <class Exec, class T>
void check_copies(const CheckContext<Exec>&);

// Does all of them, with micro-batches of so many sequences. Memory: some copies of the largest matrix. Throws nothing
// because a kernel is wrong.
template <class Exec, class T>
std::vector<KernelCheck> check_kernels(const Exec&, const Options&, int micro_batch);

}  // namespace sestina
