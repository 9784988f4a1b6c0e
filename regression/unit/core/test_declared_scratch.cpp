// What a kind declares of its scratch is what its updates take: the most that a run holds at once.
#include <gtest/gtest.h>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "matrix_rig.hpp"

namespace sestina {
namespace {

using namespace reference;

struct ScratchVariant {
  std::string kind;
  KeyValues numbers = {};
  Words words = {};
  // Otherwise the most that any run could take: of whatever rank its gradients are, and by any of Shampoo's roots.
  bool is_exact = true;
};

// Every line of the table with its defaults, and keys that choose another way to compute.
std::vector<ScratchVariant> scratch_variants() {
  std::vector<ScratchVariant> all = {{"soap", {}, {{"basis_first", "svd"}, {"basis_refresh", "eigh"}}},
                                     {"soap", {{"normalize", 1}}, {{"momentum_basis", "rotated"}}},
                                     {"soap", {}, {{"sides", "smaller"}}, false},
                                     {"soap-muon", {{"max_dim", 9}}, {{"ns_norm", "frobenius"}}},
                                     {"soap-muon", {{"norm_snap", 1}}, {{"ns_form", "gram"}}},
                                     {"muon", {{"row_equilibration", 1}, {"norm_snap", 1}}, {{"ns_form", "gram"}}},
                                     {"adamuon", {{"row_equilibration", 1}}, {{"ns_norm", "gram"}}},
                                     {"kl-soap", {{"sort", 1}}, {{"basis_first", "svd"}}},
                                     {"basis-rotation", {}, {{"source", "1st"}}},
                                     {"basis-rotation", {}, {{"source", "1st"}, {"dialect", "release"}}},
                                     {"basis-rotation", {}, {{"source", "1st"}, {"geometry", "unilateral"}}, false},
                                     {"shampoo", {}, {{"root", "eigh"}}, false},
                                     {"shampoo", {{"packed", 1}}, {{"root", "newton"}}},
                                     {"shampoo", {{"max_dim", 50}}, {}, false},
                                     {"soap", {}, {{"matmul_precision", "bf16"}}},
                                     {"soap-muon", {}, {{"matmul_precision", "bf16"}, {"ns_precision", "bf16"}}},
                                     {"basis-rotation", {}, {{"source", "1st"}, {"matmul_precision", "bf16"}}},
                                     {"kl-soap", {}, {{"matmul_precision", "bf16"}}},
                                     {"shampoo", {{"packed", 1}}, {{"root", "newton"}, {"matmul_precision", "bf16"}}},
                                     {"galore", {{"projector_bits", 8}}, {{"side", "left"}}, false},
                                     {"galore", {{"rank", 5}}, {{"projector", "svd"}, {"side", "right"}}, false},
                                     {"apollo", {{"projector_bits", 4}}, {{"side", "left"}}},
                                     {"apollo", {}, {{"side", "right"}}}};
  for (const MatrixKind& kind : matrix_kinds())
    all.push_back({kind.name, {}, {}, kind.name != std::string("shampoo") && kind.name != std::string("galore")});
  return all;
}

// With singular values so far apart that vectors made of them are not orthogonal.
Array scaled_gradient_at(std::size_t rows, std::size_t cols, unsigned t) {
  Array g = gradient_at(rows, cols, t);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j)
      g(i, j) *= std::pow(1e-4, rows < cols ? double(i) / double(rows) : double(j) / double(cols));
  return rounded<float>(g);
}

constexpr std::pair<std::size_t, std::size_t> scratch_shapes[] = {{130, 70}, {70, 130}};

std::string described(const ScratchVariant& v, std::size_t rows, std::size_t cols) {
  std::string text = fmt::format("{} ({}, {})", v.kind, rows, cols);
  for (const auto& [key, value] : v.numbers) text += fmt::format(" {} = {}", key, value);
  for (const auto& [key, value] : v.words) text += fmt::format(" {} = {}", key, value);
  return text;
}

TEST(DeclaredScratch, IsWhatUpdatesTake) {
  for (const ScratchVariant& v : scratch_variants())
    for (const auto& [rows, cols] : scratch_shapes) {
      SCOPED_TRACE(described(v, rows, cols));
      MatrixRig<Serial> rig(v.kind, rows, cols, v.numbers, v.words, 2);
      for (unsigned t = 1; t <= 6; ++t) rig.step(scaled_gradient_at(rows, cols, t));
      if (v.is_exact) EXPECT_EQ(rig.stream.workspace.peak(), rig.stream.workspace.capacity());
      EXPECT_GT(rig.stream.workspace.peak(), 0u);
    }
}

// With one byte less an update says so.
TEST(DeclaredScratch, IsNeeded) {
  for (const ScratchVariant& v : scratch_variants()) {
    if (!v.is_exact) continue;
    const auto& [rows, cols] = scratch_shapes[0];
    SCOPED_TRACE(described(v, rows, cols));
    MatrixRig<Serial> rig(v.kind, rows, cols, v.numbers, v.words, 2, "w", 1);
    const auto run = [&, rows = rows, cols = cols] {
      for (unsigned t = 1; t <= 6; ++t) rig.step(scaled_gradient_at(rows, cols, t));
    };
    EXPECT_THROW(run(), Error);
  }
}

TEST(DeclaredScratch, OfCopiedMatricesHoldsTwoMore) {
  const MatrixOptions options = default_options(*find_matrix_kind("soap"));
  const auto declared = [&](bool copied) {
    return bytes_taken<Serial>([&](auto& counter) { declare_update<Serial>(counter, options, 24, 24, copied); });
  };
  EXPECT_EQ(declared(true) - declared(false),
            (bytes_of<CopiedMatrix<Serial>, Serial>(std::size_t{24}, std::size_t{24})));
}

}  // namespace
}  // namespace sestina
