// What kernel tests share: matrices of doubles as the plain references use them, their copies in any type and space
// with padded rows, random values, comparison, finite differences.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina::reference {

// A dense row-major matrix of doubles; a vector is a matrix with one row.
struct Array {
  std::size_t rows = 0, cols = 0;
  std::vector<double> values;
  Array() = default;
  Array(std::size_t rows, std::size_t cols, double value = 0) : rows(rows), cols(cols), values(rows * cols, value) {}
  double& operator()(std::size_t i, std::size_t j) { return values[i * cols + j]; }
  double operator()(std::size_t i, std::size_t j) const { return values[i * cols + j]; }
};

inline Array random_array(std::size_t rows, std::size_t cols, unsigned seed, double mean = 0, double deviation = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(mean, deviation);
  Array a(rows, cols);
  for (double& value : a.values) value = normal(engine);
  return a;
}

// Distance from 1 to the next number of the stored type.
template <class T>
inline constexpr double epsilon = std::numeric_limits<T>::epsilon();
template <>
inline constexpr double epsilon<bf16> = 0x1p-7;

// A few roundings of fp32 each, relative to the value.
inline constexpr double few_roundings = 16 * epsilon<float>;

// What a test feeds to a kernel is first rounded to the stored type, so that the reference sees the same numbers.
template <class T>
Array rounded(Array a) {
  for (double& value : a.values) value = static_cast<double>(static_cast<Acc<T>>(T(static_cast<Acc<T>>(value))));
  return a;
}

// A matrix in the memory of a space, rows padded by `pad` elements that the kernels must not touch.
template <class T, class Exec>
class Field {
 public:
  Field(const Array& a, std::size_t pad = 0)
      : rows_(a.rows), cols_(a.cols), stride_(a.cols + pad), storage_("field", a.rows * stride_) {
    auto host = Kokkos::create_mirror_view(storage_);
    for (std::size_t i = 0; i < rows_ * stride_; ++i) host(i) = T(sentinel);
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < cols_; ++j) host(i * stride_ + j) = T(static_cast<Acc<T>>(a(i, j)));
    }
    Kokkos::deep_copy(storage_, host);
  }
  Field(std::size_t rows, std::size_t cols, std::size_t pad = 0) : Field(Array(rows, cols, 77), pad) {}

  Matrix<T, Exec> matrix() const {
    Matrix<T, Exec> wide(storage_.data(), rows_, stride_);
    return Kokkos::subview(wide, Kokkos::ALL, std::make_pair(std::size_t(0), cols_));
  }
  Matrix<const T, Exec> read() const { return matrix(); }
  // The first row (all of an unpadded vector).
  Vector<T, Exec> vector() const { return Vector<T, Exec>(storage_.data(), rows_ == 0 ? 0 : cols_); }
  Vector<const T, Exec> read_vector() const { return vector(); }

  // Waits for the space, checks the padding and gives the values.
  Array get() const {
    Kokkos::fence();
    auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), storage_);
    Array a(rows_, cols_);
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < cols_; ++j) a(i, j) = static_cast<double>(static_cast<Acc<T>>(host(i * stride_ + j)));
      for (std::size_t j = cols_; j < stride_; ++j) {
        EXPECT_EQ(static_cast<Acc<T>>(host(i * stride_ + j)), static_cast<Acc<T>>(T(sentinel)))
            << "padding of row " << i;
      }
    }
    return a;
  }

 private:
  static constexpr Acc<T> sentinel = 12345;
  std::size_t rows_, cols_, stride_;
  Kokkos::View<T*, typename Exec::memory_space> storage_;
};

template <class Exec>
class Indices {
 public:
  explicit Indices(const std::vector<int>& values) : storage_("indices", values.size()) {
    auto host = Kokkos::create_mirror_view(storage_);
    for (std::size_t i = 0; i < values.size(); ++i) host(i) = values[i];
    Kokkos::deep_copy(storage_, host);
  }
  Vector<const std::int32_t, Exec> vector() const { return storage_; }

 private:
  Kokkos::View<std::int32_t*, typename Exec::memory_space> storage_;
};

// |got - want| <= tolerance * (scale + |want|) in every element, where scale is the root mean square of `want`: an
// element that is small because large terms cancel carries the rounding errors of those terms.
inline void expect_close(const Array& got, const Array& want, double tolerance, const char* what) {
  ASSERT_EQ(got.rows, want.rows) << what;
  ASSERT_EQ(got.cols, want.cols) << what;
  double squares = 0;
  for (double value : want.values) squares += value * value;
  const double scale = want.values.empty() ? 0 : std::sqrt(squares / static_cast<double>(want.values.size()));
  for (std::size_t i = 0; i < want.rows; ++i) {
    for (std::size_t j = 0; j < want.cols; ++j) {
      const double bound = tolerance * (scale + std::abs(want(i, j)));
      ASSERT_LE(std::abs(got(i, j) - want(i, j)), bound)
          << what << " (" << i << ", " << j << "): got " << got(i, j) << ", want " << want(i, j);
    }
  }
}

inline void expect_same(const Array& got, const Array& want, const char* what) {
  ASSERT_EQ(got.values.size(), want.values.size()) << what;
  for (std::size_t i = 0; i < want.values.size(); ++i) ASSERT_EQ(got.values[i], want.values[i]) << what << " at " << i;
}

inline double inner(const Array& a, const Array& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) sum += a.values[i] * b.values[i];
  return sum;
}

// Central differences of a scalar function with respect to every element of x: error about step^2, plus eps / step.
inline Array differences(Array x, const std::function<double(const Array&)>& f, double step = 1e-5) {
  Array slope(x.rows, x.cols);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const double keep = x.values[i];
    x.values[i] = keep + step;
    const double above = f(x);
    x.values[i] = keep - step;
    const double below = f(x);
    x.values[i] = keep;
    slope.values[i] = (above - below) / (2 * step);
  }
  return slope;
}
inline constexpr double difference_tolerance = 1e-7;

// The spaces and types that every kernel test runs over.
template <class E, class S>
struct Case {
  using Exec = E;
  using T = S;
};
using HostCases = testing::Types<Case<Host, float>, Case<Host, bf16>, Case<Host, double>>;
using AllCases = std::conditional_t<std::is_same_v<Host, Device>, HostCases,
                                    testing::Types<Case<Host, float>, Case<Host, bf16>, Case<Host, double>,
                                                   Case<Device, float>, Case<Device, bf16>, Case<Device, double>>>;

// Runs f on host instances of one and of several threads, and expects the same bits from its results.
template <class F>
void expect_same_for_any_thread_count(const F& f) {
  const std::vector<Array> first = f(Host(1));
  for (int threads : {2, 3}) {
    const std::vector<Array> results = f(Host(threads));
    for (std::size_t i = 0; i < first.size(); ++i) expect_same(results[i], first[i], "result for another thread count");
  }
}

}  // namespace sestina::reference
