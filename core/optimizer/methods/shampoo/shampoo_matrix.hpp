// Shampoo on one matrix. For each block with gradient G: L = beta2 L + (1 - beta2) G G^T, R = beta2 R + (1 - beta2) G^T
// G, and at a refresh their inverse roots, before use; P = L^-p F R^-p with the averaged gradient F, with the size of
// the graft's direction.
#pragma once
#include <string>
#include <vector>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/methods/shampoo/shampoo.hpp"
#include "core/optimizer/refresh/port.hpp"
#include "kernels/optimizer/batch/shampoo_batch.hpp"

namespace sestina {

// The keys, and the numbers that follow from them.
struct ShampooRule : ShampooOptions {
  explicit ShampooRule(const MatrixOptions&);

  FilterRule filter(std::int64_t t, double gradient_scale) const;
  // Returns what a factor gains of G G^T.
  double gain(double gradient_scale) const { return (beta2 < 1 ? 1 - beta2 : 1) * gradient_scale * gradient_scale; }
  bool grafts() const { return graft != Graft::none; }

  RefreshMethod method;
  std::int64_t every, start;
};

// One side of a block: its factor, whole or packed, and what is computed from it.
template <class Space>
struct ShampooSide {
  std::string name;               // name of the factor, for messages
  std::string snapshot;           // the field of its snapshot
  StateArray<Space> factor = {};  // (d, d), or packed
  bool is_packed = false;
  StateArray<Space> root = {}, basis = {};
  std::int64_t* failures = nullptr;
  std::int64_t* refreshes = nullptr;
  std::size_t size() const { return root.extent(0); }
};

template <class Space>
class ShampooUpdates;  // of many matrices together: shampoo_updates.hpp

template <class Space>
class Shampoo final : public MatrixOptimizer<Space> {
 public:
  using Batch = ShampooUpdates<Space>;

  Shampoo(const Space&, const MatrixOptions&, const MatrixShape&);
  static void declare_scratch(Workspace<Space>&, const MatrixOptions&, std::size_t rows, std::size_t cols);

  void step(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&) override;
  MatrixState<Space>& state() override { return state_; }
  bool repeats(const RefreshPolicy&) override;
  RefreshAges ages() const override { return port_.ages(); }
  RefreshPort<Space>* port() override { return &port_; }

 private:
  friend class ShampooUpdates<Space>;
  struct Direction {
    Matrix<float, Space> values;              // (bm, bn) without padding
    Vector<const double, Space> factor = {};  // (1) in the space: a factor still to be applied
  };

  std::vector<ShampooSide<Space>> make_sides();
  std::vector<RefreshSide> port_sides() const;
  ShampooSide<Space> side(const std::string& prefix, const std::string& which, std::size_t counter);

  // Returns the block's part of x (m, n), whose rows are contiguous.
  template <class T>
  Matrix<T, Space> cut(Matrix<T, Space> x, const ShampooBlock& b) const {
    const Matrix<T, Space> seen(x.data(), layout_.rows, layout_.cols);
    return Kokkos::subview(seen, std::make_pair(b.row, b.row + b.rows), std::make_pair(b.col, b.col + b.cols));
  }

  // Updates A = beta2 A + (1 - beta2) op(G) op(G)^T, and its inverse root when that falls due.
  void advance_side(Stream<Space>&, std::size_t number, Op op, std::int64_t t, double gradient_scale,
                    Matrix<const float, Space> gradient);
  bool is_due(std::int64_t t, const RefreshPolicy&) const;  // a refresh at update t
  // Runs the refresh point of a side, whose factor is given as a matrix.
  void refresh_side(Stream<Space>&, std::size_t number, std::int64_t t, Matrix<const float, Space> factor);
  // Returns the job of update t.
  RefreshJob<Space> root_job(const ShampooSide<Space>&, Matrix<const float, Space> factor, std::int64_t t) const;
  // Updates factors, roots and averages of block i, and returns the direction in which its part of the weight moves.
  Direction block_direction(Stream<Space>&, std::size_t i, std::int64_t t, double gradient_scale,
                            Matrix<const float, Space> whole_gradient);

  ShampooRule rule_;
  ShampooLayout layout_;
  std::int64_t index_;
  MatrixState<Space> state_;
  std::vector<ShampooSide<Space>> sides_;  // by block: left, right
  RefreshPort<Space> port_;
};

}  // namespace sestina
