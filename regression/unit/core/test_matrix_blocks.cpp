// Blocks of a matrix whose sides are longer than its kind takes: where they lie, and each as the matrix that it is by
// itself.
#include <map>

#include "core/optimizer/matrix_set.hpp"
#include "regression/unit/core/matrix_rig.hpp"
#include "regression/unit/kind_names.hpp"

namespace sestina {
namespace {

using namespace reference;

constexpr std::size_t long_rows = 70, long_cols = 45;
constexpr double most = 32, rate = 0.0625, decay = 0.125;

OptimizerOptions cut_options(const std::string& kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.matrix = default_options(*find_matrix_kind(kind));
  options.matrix->set("max_dim", most);
  options.matrix->refresh_every = 3;
  return options;
}

TensorSpec long_tensor() { return {"w", static_cast<std::int64_t>(long_rows), static_cast<std::int64_t>(long_cols)}; }

Array block_of(const Array& whole, const MatrixPart& part) {
  Array block(static_cast<std::size_t>(part.rows), static_cast<std::size_t>(part.cols));
  for (std::size_t i = 0; i < block.rows; ++i)
    for (std::size_t j = 0; j < block.cols; ++j)
      block(i, j) = whole(static_cast<std::size_t>(part.row_begin) + i, static_cast<std::size_t>(part.col_begin) + j);
  return block;
}

// A tensor (70, 45) whose blocks are updated in two streams, with its rounded copy.
struct CutTensor {
  explicit CutTensor(const OptimizerOptions& options) : parts(matrix_parts(long_tensor(), options)) {
    set_values(master, rounded<float>(random_array(long_rows, long_cols, 5)));
    set_values(weight, values_of(master));
    std::vector<MatrixItem<Host>> items;
    add_matrix_items<Host>({long_tensor(), {rate, decay}}, options, gradient, master, weight, items);
    MatrixSetOptions setting;
    setting.options = *options.matrix;
    setting.deterministic = true;
    setting.threads = 2;
    set = make_matrix_set<Host>(Host(), items, setting);
  }
  void step(std::int64_t t, const Array& g) {
    set_values(gradient, g);
    set->step(t, 1, 1, 0, set->size());
  }

  std::vector<MatrixPart> parts;
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> gradient{"g", long_rows, long_cols},
      master{"w", long_rows, long_cols};
  Kokkos::View<bf16**, Kokkos::LayoutRight, Kokkos::HostSpace> weight{"b", long_rows, long_cols};
  std::unique_ptr<MatrixSet<Host>> set;
};

TEST(MatrixBlocks, AreFullOnesFirstAndTheRestLast) {
  struct Place {
    std::string name;
    std::int64_t row, col, rows, cols;
  };
  const auto expect = [](const TensorSpec& spec, const OptimizerOptions& options, const std::vector<Place>& places) {
    const std::vector<MatrixPart> parts = matrix_parts(spec, options);
    ASSERT_EQ(parts.size(), places.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].name, places[i].name);
      EXPECT_EQ(parts[i].row_begin, places[i].row) << parts[i].name;
      EXPECT_EQ(parts[i].col_begin, places[i].col) << parts[i].name;
      EXPECT_EQ(parts[i].rows, places[i].rows) << parts[i].name;
      EXPECT_EQ(parts[i].cols, places[i].cols) << parts[i].name;
      EXPECT_EQ(parts[i].cut_cols, parts[i].cols < spec.cols) << parts[i].name;
    }
  };
  OptimizerOptions options = cut_options("soap");
  expect(long_tensor(), options,
         {{"w/block_00_00", 0, 0, 32, 32},
          {"w/block_00_01", 0, 32, 32, 13},
          {"w/block_01_00", 32, 0, 32, 32},
          {"w/block_01_01", 32, 32, 32, 13},
          {"w/block_02_00", 64, 0, 6, 32},
          {"w/block_02_01", 64, 32, 6, 13}});
  expect({"w", 32, 32}, options, {{"w", 0, 0, 32, 32}});
  expect({"w", 33, 20}, options, {{"w/block_00_00", 0, 0, 32, 20}, {"w/block_01_00", 32, 0, 1, 20}});
  TensorSpec q{"q", 20, 40};
  q.heads = 2;
  expect(q, options, {{"q/block_00_00", 0, 0, 20, 32}, {"q/block_00_01", 0, 32, 20, 8}});
  options.per_head = true;
  EXPECT_TRUE(is_by_head(q, options));
  EXPECT_FALSE(is_by_head(long_tensor(), options));
  expect(q, options,
         {{"q/head_00/block_00_00", 0, 0, 10, 32},
          {"q/head_00/block_00_01", 0, 32, 10, 8},
          {"q/head_01/block_00_00", 10, 0, 10, 32},
          {"q/head_01/block_00_01", 10, 32, 10, 8}});
}

// Shampoo has blocks of its own, and packed skew matrices are never cut.
TEST(MatrixBlocks, AreNotMadeOfWhatCutsItself) {
  EXPECT_EQ(matrix_parts(long_tensor(), cut_options("shampoo")).size(), 1u);
  TensorSpec skew{"theta", 2 * 40 * 39 / 2, 1};
  skew.skew_block = 40;
  const std::vector<MatrixPart> parts = matrix_parts(skew, cut_options("soap"));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].name, "theta/block_0001");
  EXPECT_EQ(parts[1].rows, 40);
}

// Each block has the bits of a matrix by itself, whatever lies next to it: weights, rounded weights and state.
TEST(MatrixBlocks, AreMatricesOfTheirOwn) {
  const std::vector<std::string> kinds = cut_kind_names();
  ASSERT_GE(kinds.size(), 4u);  // soap, kl-soap, kl-shampoo, basis-rotation
  for (const std::string& kind : kinds) {
    CutTensor tensor(cut_options(kind));
    std::vector<std::unique_ptr<MatrixRig<Serial>>> alone;
    for (const MatrixPart& part : tensor.parts) {
      alone.push_back(std::make_unique<MatrixRig<Serial>>(kind, static_cast<std::size_t>(part.rows),
                                                          static_cast<std::size_t>(part.cols)));
      alone.back()->set_master(block_of(values_of(tensor.master), part));
    }
    for (unsigned t = 1; t <= 8; ++t) {  // over two refreshes
      const Array g = gradient_at(long_rows, long_cols, t);
      tensor.step(t, g);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        const Array want = alone[i]->step(block_of(g, tensor.parts[i]), rate, decay);
        expect_same(block_of(values_of(tensor.master), tensor.parts[i]), want, kind.c_str());
        expect_same(block_of(values_of(tensor.weight), tensor.parts[i]), rounded<bf16>(want), kind.c_str());
      }
    }
    std::size_t fields = 0;
    for (const StateField& field : tensor.set->state()) {
      const auto* data = static_cast<const char*>(field.data);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        const std::string path = "/optimizer/" + tensor.parts[i].name + "/";
        if (!field.path.starts_with(path)) continue;
        ++fields;
        for (const StateField& own : alone[i]->optimizer->state().fields())
          if (own.path == "/optimizer/w/" + field.path.substr(path.size()))
            EXPECT_TRUE(own.bytes() == field.bytes() &&
                        std::equal(data, data + field.bytes(), static_cast<const char*>(own.data)))
                << kind << ' ' << field.path;
      }
    }
    EXPECT_EQ(fields, tensor.set->state().size()) << kind;
  }
}

// SOAP as published, in double, of a matrix that is cut by hand: until a refresh, in the first bases of the program.
struct PlainSoapBlock {
  Array w, m, v, ql, qr;
  int t = 0;
  void step(const Array& g) {
    constexpr double beta = 0.95, eps = 1e-8;
    m = blend(beta, m, 1 - beta, g);
    const Array h = product(product(transposed(ql), g), qr);
    Array d = product(product(transposed(ql), m), qr);
    for (std::size_t i = 0; i < v.values.size(); ++i) {
      v.values[i] = beta * v.values[i] + (1 - beta) * h.values[i] * h.values[i];
      d.values[i] /= std::sqrt(v.values[i]) + eps;
    }
    ++t;
    const double step_size = rate * std::sqrt(1 - std::pow(beta, t)) / (1 - std::pow(beta, t));
    w = blend(1 - rate * decay, w, -(1 - rate * decay) * step_size, product(product(ql, d), transposed(qr)));
  }
};

TEST(MatrixBlocks, OfSoapFollowItsRule) {
  OptimizerOptions options = cut_options("soap");
  options.matrix->refresh_every = 100;
  CutTensor tensor(options);
  const Array first = gradient_at(long_rows, long_cols, 0), start = values_of(tensor.master);
  tensor.step(1, first);
  std::map<std::string, Array> basis;
  for (const StateField& field : tensor.set->state())
    if (field.path.find("/basis_") != std::string::npos)
      basis[field.path] = values_of(Matrix<const float, Host>(static_cast<const float*>(field.data),
                                                              static_cast<std::size_t>(field.shape[0]),
                                                              static_cast<std::size_t>(field.shape[1])));
  std::vector<PlainSoapBlock> plain;
  for (const MatrixPart& part : tensor.parts) {
    const auto m = static_cast<std::size_t>(part.rows), n = static_cast<std::size_t>(part.cols);
    const std::string path = "/optimizer/" + part.name;
    plain.push_back({block_of(start, part), Array(m, n), Array(m, n), basis.at(path + "/basis_left"),
                     basis.at(path + "/basis_right")});
    // Eigenvectors of G G^T: of its products, in the basis, nothing lies off the diagonal but rounding.
    const Array g = block_of(first, part), q = plain.back().ql;
    const Array diagonal = product(product(transposed(q), product(g, transposed(g))), q);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < m; ++j)
        if (i != j) EXPECT_LE(std::abs(diagonal(i, j)), static_cast<double>(m) * epsilon<float> * inner(g, g));
  }
  for (unsigned t = 2; t <= 10; ++t) {
    const Array g = gradient_at(long_rows, long_cols, t);
    tensor.step(t, g);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      plain[i].step(block_of(g, tensor.parts[i]));
      // fp32 products of length 32, and divisions by roots that are small at first: 500 * 32 * eps / 100 steps of rate.
      expect_close(block_of(values_of(tensor.master), tensor.parts[i]), plain[i].w, 5e-5, "block");
    }
  }
}

template <class Space>
class CutBlock : public testing::Test {};
TYPED_TEST_SUITE(CutBlock, StreamSpaces, SpaceNames);

// On every space: what lies between the rows of the block keeps its values.
TYPED_TEST(CutBlock, IsUpdatedInItsPlace) {
  constexpr std::size_t m = 12, n = 8;
  for (const std::string& kind : cut_kind_names()) {
    MatrixRig<TypeParam> alone(kind, m, n);
    const auto optimizer = make_matrix_optimizer<TypeParam>(TypeParam(), alone.options, {"/optimizer/block", m, n, 0});
    Stream<TypeParam> stream{TypeParam(), Gemm<TypeParam>(TypeParam(), true),
                             Workspace<TypeParam>(bytes_taken<TypeParam>([&](auto& counter) {
                               declare_update<TypeParam>(counter, alone.options, m, n, true);
                             }))};
    const Field<float, TypeParam> master(alone.weight, 3);
    const Field<bf16, TypeParam> weight(alone.weight, 5);
    for (unsigned t = 1; t <= 4; ++t) {  // up to and with a refresh
      const Array g = gradient_at(m, n, t);
      const Field<float, TypeParam> gradient(g, 2);
      step_cut_block<TypeParam>(stream, *optimizer, {t, rate, decay},
                                {"block", gradient.read(), master.matrix(), weight.matrix()}, {});
      const Array want = alone.step(g, rate, decay);
      expect_same(master.get(), want, kind.c_str());
      expect_same(weight.get(), rounded<bf16>(want), kind.c_str());
    }
  }
}

}  // namespace
}  // namespace sestina
