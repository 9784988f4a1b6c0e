// Shampoo (Gupta, Koren, Singer 2018) with blocks and grafting as in Shi et al. 2023: its keys, and how it cuts a
// matrix into blocks of at most max_dim x max_dim, each with its own factors (shampoo_layout.cpp). No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"

namespace sestina {

// The default of eps is what rounding leaves of a factor whose largest eigenvalues are about 1e-3, as clipped gradients
// of a language model have. Below that, eigenvalues in fp32 are noise, and the inverse root would enlarge it.
struct ShampooOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;  // 1: a sum
  double beta3 = -1;    // -1: beta1
  double eps = 1e-10, exponent = 0.25;
  std::int64_t max_dim = 1024;
  std::int64_t start_step = 0;  // 0: refresh_every
  bool bias_correction = true;
  enum class Graft : std::uint8_t { adam, none, sgd, adagrad, rmsprop } graft = Graft::adam;
  double graft_beta2 = 0.95, graft_eps = 1e-8;
  enum class Root : std::uint8_t { qr, eigh, newton } root = Root::qr;
  double qr_tolerance = 0.01;
  std::int64_t qr_iterations = 1;
  Order perturb = Order::before;  // eps is added before the decomposition or after it
  Order decay_order = Order::before;
  bool merge_dims = false, packed = false;
  MatmulPrecision matmul_precision = MatmulPrecision::fp32;

  void fields(OptionFields&);
  bool grafts_by_moment() const { return graft != Graft::none && graft != Graft::sgd; }  // keeps a second moment
};

struct ShampooBlock {
  std::size_t row = 0, col = 0;    // place of its corner
  std::size_t rows = 0, cols = 0;  // (bm, bn)
  std::string prefix;              // prefix of its fields: "", or "block_<i>_<j>." when there are several
};

struct ShampooLayout {
  std::size_t rows = 0, cols = 0;  // sizes of the matrix, or of the column vector that it is seen as
  bool is_vector = false;          // seen as a vector: a factor for the rows only, to the power -2 exponent
  std::vector<ShampooBlock> blocks;
};

ShampooLayout shampoo_layout(const ShampooOptions&, std::size_t rows, std::size_t cols);

std::vector<FieldSize> shampoo_state(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
UpdateWork shampoo_work(const MatrixOptions&, std::int64_t rows, std::int64_t cols);

void register_shampoo();

}  // namespace sestina
