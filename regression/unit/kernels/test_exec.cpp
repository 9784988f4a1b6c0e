// How many threads an instance of the host has, in every version of Kokkos: its deprecated code answers for the default
// instance.
#include <gtest/gtest.h>

#include "kernels/blas/exec.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/model/attention.hpp"

namespace sestina {
namespace {

TEST(Exec, ThreadsAreThoseOfTheInstance) {
  const int all = Kokkos::num_threads();
  EXPECT_EQ(threads_of(Host()), all);
  EXPECT_EQ(threads_of(Serial()), 1);
  const Host few(all + 1), many(all + 3), copy = few;  // neither is as wide as the default instance
  EXPECT_EQ(threads_of(few), all + 1);
  EXPECT_EQ(threads_of(many), all + 3);
  EXPECT_EQ(threads_of(copy), all + 1);
  EXPECT_EQ(Gemm<Host>(many).lanes(), static_cast<std::size_t>(all + 3));
}

// Attention works in a slot for each thread: workspace is asked for, and used, by the instance's own number.
TEST(Exec, WorkspaceOfAttentionFollowsTheInstance) {
  const int all = Kokkos::num_threads();
  const AttentionShape shape{all + 3, 64, 2, 2, 8, 1.0};
  const std::size_t one = bytes_taken<Host>([&](auto& counter) { declare_attention<float, Host>(counter, 1, shape); });
  for (const int threads : {1, all + 1, all + 3})
    EXPECT_EQ((bytes_taken<Host>([&](auto& counter) { declare_attention<float>(counter, Host(threads), shape); })),
              one * static_cast<std::size_t>(threads));
}

}  // namespace
}  // namespace sestina
