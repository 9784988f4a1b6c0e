// What a kind declares of its scratch is what its updates take: the most that a run holds at once.
#include <gtest/gtest.h>

#include "core/optimizer/base/skew_blocks.hpp"
#include "matrix_rig.hpp"

namespace sestina {
namespace {

using namespace reference;

struct ScratchVariant {
  std::string kind;
  KeyValues numbers = {};
  Words words = {};
};

// Every line of the table with its defaults, and keys that choose another way to compute.
std::vector<ScratchVariant> scratch_variants() {
  std::vector<ScratchVariant> all = {{"soap", {{"normalize", 1}}, {{"sides", "smaller"}}},
                                     {"soap", {}, {{"basis_first", "svd"}, {"basis_refresh", "eigh"}}},
                                     {"soap", {{"max_dim", 15}}, {{"momentum_basis", "rotated"}}},
                                     {"kl-soap", {{"sort", 1}}, {{"basis_first", "svd"}}},
                                     {"basis-rotation", {}, {{"source", "1st"}}},
                                     {"basis-rotation", {}, {{"source", "1st"}, {"dialect", "release"}}},
                                     {"basis-rotation", {}, {{"source", "1st"}, {"geometry", "unilateral"}}},
                                     {"shampoo", {}, {{"root", "eigh"}}},
                                     {"shampoo", {{"packed", 1}}, {{"root", "newton"}}},
                                     {"shampoo", {{"max_dim", 9}}, {}},
                                     {"galore", {{"projector_bits", 8}}, {{"side", "left"}}},
                                     {"galore", {{"rank", 5}}, {{"projector", "svd"}, {"side", "right"}}},
                                     {"apollo", {{"projector_bits", 4}}, {{"side", "left"}}},
                                     {"apollo", {}, {{"side", "right"}}}};
  for (const MatrixKind& kind : matrix_kinds()) all.push_back({kind.name});
  return all;
}

std::string described(const ScratchVariant& v, std::size_t rows, std::size_t cols) {
  std::string text = fmt::format("{} ({}, {})", v.kind, rows, cols);
  for (const auto& [key, value] : v.numbers) text += fmt::format(" {} = {}", key, value);
  for (const auto& [key, value] : v.words) text += fmt::format(" {} = {}", key, value);
  return text;
}

TEST(DeclaredScratch, IsWhatUpdatesTake) {
  for (const ScratchVariant& v : scratch_variants())
    for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{12, 20}, {130, 70}, {1, 16}}) {
      SCOPED_TRACE(described(v, rows, cols));
      MatrixRig<Serial> rig(v.kind, rows, cols, v.numbers, v.words, 2);
      for (unsigned t = 1; t <= 6; ++t) rig.step(gradient_at(rows, cols, t));
      EXPECT_EQ(rig.stream.workspace.peak(), rig.stream.workspace.capacity());
    }
}

// One byte less, and an update says so: nothing is taken from elsewhere.
TEST(DeclaredScratch, IsNeeded) {
  for (const MatrixKind& kind : matrix_kinds()) {
    SCOPED_TRACE(kind.name);
    if (MatrixRig<Serial>(kind.name, 12, 20).stream.workspace.capacity() == 0) continue;
    MatrixRig<Serial> rig(kind.name, 12, 20, {}, {}, 2, "w", 1);
    const auto run = [&] {
      for (unsigned t = 1; t <= 6; ++t) rig.step(gradient_at(12, 20, t));
    };
    EXPECT_THROW(run(), Error);
  }
}

TEST(DeclaredScratch, OfPackedMatricesHoldsTwoWholeOnes) {
  const MatrixOptions options = default_options(*find_matrix_kind("soap"));
  const auto declared = [&](bool skew) {
    return bytes_taken<Serial>([&](auto& counter) { declare_update<Serial>(counter, options, 24, 24, skew); });
  };
  EXPECT_EQ(declared(true) - declared(false), (bytes_of<SkewScratch<Serial>, Serial>(std::size_t{24})));
}

}  // namespace
}  // namespace sestina
