// Spectral norms and RMS of weights and updates against matrices whose values are known.
#include <gtest/gtest.h>

#include <cmath>

#include "core/diagnostics.hpp"

namespace sestina {
namespace {

TEST(Diagnostics, RankOneMatrixAndItsUpdate) {
  constexpr std::size_t rows = 7, cols = 5;
  const Kokkos::View<float*, Kokkos::HostSpace> weight("w", rows * cols), gradient("g", rows * cols);
  double u2 = 0, v2 = 0;
  for (std::size_t i = 0; i < rows; ++i) u2 += std::pow(1.0 + static_cast<double>(i), 2);
  for (std::size_t j = 0; j < cols; ++j) v2 += std::pow(2.0 - static_cast<double>(j), 2);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j)
      weight(i * cols + j) = (1.0f + static_cast<float>(i)) * (2.0f - static_cast<float>(j));
  TensorSpec spec;
  spec.name = "matrix";
  spec.rows = rows;
  spec.cols = cols;
  TensorDiagnostics<Host, float> diagnostics(Host{}, {{spec, gradient, weight, {}}});
  diagnostics.before_update(Host{});
  for (std::size_t i = 0; i < rows * cols; ++i) weight(i) += 0.25f;
  for (std::size_t i = 0; i < rows * cols; ++i) weight(i) -= 0.5f;  // the last update is what counts: -0.25 in all
  std::vector<TensorDiagnostics<Host, float>::Values> values;
  diagnostics.after_update(Host{}, values);
  ASSERT_EQ(values.size(), 1u);
  EXPECT_NEAR(values[0].update_rms, 0.25, 1e-6);

  for (std::size_t i = 0; i < rows * cols; ++i) weight(i) += 0.25f;
  diagnostics.before_update(Host{});
  diagnostics.after_update(Host{}, values);
  // A rank-one matrix u v^T has one singular value, |u| |v|; float sums of 35 terms: 35 eps of it.
  EXPECT_NEAR(values[0].spectral_norm, std::sqrt(u2 * v2), 35 * 1.2e-7 * std::sqrt(u2 * v2));
  EXPECT_NEAR(values[0].weight_rms, std::sqrt(u2 * v2 / (rows * cols)), 1e-5);
  EXPECT_EQ(values[0].update_rms, 0);
}

}  // namespace
}  // namespace sestina
