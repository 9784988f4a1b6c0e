// Spectral norms and RMS of weights and updates against matrices whose values are known.
#include <gtest/gtest.h>

#include <cmath>

#include "core/diagnostics.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class Space>
class Diagnostics : public testing::Test {};
TYPED_TEST_SUITE(Diagnostics, RunSpaces, SpaceNames);

TYPED_TEST(Diagnostics, RankOneMatrixAndItsUpdate) {
  using Space = TypeParam;
  constexpr std::size_t rows = 7, cols = 5;
  const Kokkos::View<float*, typename Space::memory_space> weight("w", rows * cols), gradient("g", rows * cols);
  double u2 = 0, v2 = 0;
  for (std::size_t i = 0; i < rows; ++i) u2 += std::pow(1.0 + static_cast<double>(i), 2);
  for (std::size_t j = 0; j < cols; ++j) v2 += std::pow(2.0 - static_cast<double>(j), 2);
  Array rank_one(1, rows * cols), moved(1, rows * cols);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j)
      rank_one(0, i * cols + j) = (1.0 + static_cast<double>(i)) * (2.0 - static_cast<double>(j));
  for (std::size_t i = 0; i < rows * cols; ++i) moved(0, i) = rank_one(0, i) - 0.25;
  set_values(weight, rank_one);
  TensorSpec spec;
  spec.name = "matrix";
  spec.rows = rows;
  spec.cols = cols;
  TensorDiagnostics<Space, float> diagnostics(Space{}, {{spec, gradient, weight, {}}});
  diagnostics.before_update(Space{});
  set_values(weight, moved);
  std::vector<typename TensorDiagnostics<Space, float>::Values> values;
  diagnostics.after_update(Space{}, values);
  ASSERT_EQ(values.size(), 1u);
  EXPECT_NEAR(values[0].update_rms, 0.25, 1e-6);

  set_values(weight, rank_one);
  diagnostics.before_update(Space{});
  diagnostics.after_update(Space{}, values);
  // A rank-one matrix u v^T has one singular value, |u| |v|; float sums of 35 terms: 35 eps of it.
  EXPECT_NEAR(values[0].spectral_norm, std::sqrt(u2 * v2), 35 * 1.2e-7 * std::sqrt(u2 * v2));
  EXPECT_NEAR(values[0].weight_rms, std::sqrt(u2 * v2 / (rows * cols)), 1e-5);
  EXPECT_EQ(values[0].update_rms, 0);
}

}  // namespace
}  // namespace sestina
