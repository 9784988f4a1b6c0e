// One matrix and its optimizer on a space, and small matrices of doubles as the plain references of its rule.
#pragma once
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "kernels/base/random.hpp"
#include "regression/unit/linear_algebra.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina::reference {

inline Array blend(double keep, const Array& a, double add, const Array& b) {
  Array c = a;
  for (std::size_t i = 0; i < c.values.size(); ++i) c.values[i] = keep * a.values[i] + add * b.values[i];
  return c;
}
// The columns of `basis` with the signs that those of `like` have.
inline Array signed_like(Array basis, const Array& like) {
  for (std::size_t j = 0; j < basis.cols; ++j) {
    double dot = 0;
    for (std::size_t i = 0; i < basis.rows; ++i) dot += basis(i, j) * like(i, j);
    if (dot < 0)
      for (std::size_t i = 0; i < basis.rows; ++i) basis(i, j) = -basis(i, j);
  }
  return basis;
}

inline Array gradient_at(std::size_t rows, std::size_t cols, unsigned t) {
  return rounded<float>(random_array(rows, cols, 1000 + t, 0.2));
}
// -2, -1, 0, 1 or 2: products are exact.
inline Array integers_at(std::size_t rows, std::size_t cols, unsigned t) {
  Array g = gradient_at(rows, cols, t);
  for (double& x : g.values) x = std::clamp(std::round(x), -2.0, 2.0);
  return g;
}

using KeyValues = std::vector<std::pair<std::string, double>>;
using Words = std::vector<std::pair<std::string, std::string>>;

template <class Space>
struct MatrixRig {
  MatrixRig(const std::string& kind, std::size_t rows, std::size_t cols, const KeyValues& numbers = {},
            const Words& words = {}, std::int64_t every = 3, const std::string& name = "w", std::size_t less_bytes = 0,
            std::int64_t staleness = 0, bool eager = false)
      : MatrixRig(made(kind, numbers, words, every, staleness, eager), rows, cols, name, less_bytes) {}
  MatrixRig(const MatrixOptions& given, std::size_t rows, std::size_t cols, const std::string& name = "w",
            std::size_t less_bytes = 0)
      : options(given),
        optimizer(make_matrix_optimizer<Space>(Space(), options, {"/optimizer/" + name, rows, cols, 0})),
        stream{Space(), Gemm<Space>(Space(), true),
               Workspace<Space>(
                   bytes_taken<Space>([&](auto& counter) { declare_update<Space>(counter, options, rows, cols); }) -
                   less_bytes)},
        weight(random_array(rows, cols, 77)),
        master("w", rows, cols),
        gradient("g", rows, cols) {
    weight = rounded<float>(weight);
    set_values(master, weight);
  }

  // One update with this gradient; the weight after it.
  Array step(const Array& g, double lr = 0.0625, double weight_decay = 0, double gradient_scale = 1) {
    set_values(gradient, g);
    const std::size_t m = master.extent(0), n = master.extent(1);
    optimizer->step(
        stream, {++calls, lr, weight_decay, gradient_scale},
        {"w", Matrix<const float, Space>(gradient.data(), m, n), Matrix<float, Space>(master.data(), m, n), {}});
    return values_of(master);
  }
  Array master_values() { return values_of(master); }
  void set_master(const Array& values) { set_values(master, values); }
  Array field(const std::string& name) { return values_of(optimizer->state().read(name)); }

  MatrixOptions options;
  std::unique_ptr<MatrixOptimizer<Space>> optimizer;
  Stream<Space> stream;
  Array weight;  // at the start
  std::int64_t calls = 0;

 private:
  static MatrixOptions made(const std::string& kind, const KeyValues& numbers, const Words& words, std::int64_t every,
                            std::int64_t staleness, bool eager) {
    MatrixOptions options = default_options(*find_matrix_kind(kind));
    for (const auto& [key, value] : numbers) options.set(key, value);
    for (const auto& [key, value] : words) options.set(key, value);
    options.refresh_every = every;
    options.refresh_staleness = staleness;
    options.refresh_eager = eager;
    return options;
  }

  Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space> master, gradient;
};

// Puts the state of one matrix into another object.
template <class Space>
void hand_over(MatrixRig<Space>& from, MatrixRig<Space>& to) {
  const auto source = from.optimizer->state().fields(), target = to.optimizer->state().fields();
  for (std::size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(source[i].path, target[i].path);
    const auto n = source[i].bytes();
    const auto place = write_to(target[i]);
    if (source[i].on_device) {
      const Vector<const std::byte, Space> a(static_cast<const std::byte*>(source[i].data), n);
      Kokkos::deep_copy(Vector<std::byte, Space>(place.view(), n), a);
    } else {
      std::copy_n(static_cast<const std::byte*>(source[i].data), n, place.view());
    }
  }
  to.set_master(from.master_values());
}

}  // namespace sestina::reference
