// Two-sided methods share the sides of one matrix, each with a factor K (a running mean of G G^T or G^T G for gradients
// G) and an orthogonal basis Q (Ql, Qr) whose columns drift towards its eigenvectors; rotation into the bases and back;
// refreshes.
#pragma once
#include <string>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/refresh/port.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

// Computes C = alpha op_a(A) op_b(B) + beta C in fp32.
template <class Space>
void multiply(Stream<Space>& stream, Op op_a, Op op_b, float alpha, Matrix<const float, Space> a,
              Matrix<const float, Space> b, float beta, Matrix<float, Space> c) {
  stream.gemm.template operator()<float, float>(op_a, op_b, alpha, a, b, beta, c);
}

// The precision of products while it lives.
template <class Space>
struct ProductPrecision {
  ProductPrecision(Gemm<Space>& products, MatmulPrecision precision) : gemm(products) {
    gemm.round_to_tf32(precision == MatmulPrecision::tf32);
  }
  ~ProductPrecision() { gemm.round_to_tf32(false); }
  ProductPrecision(const ProductPrecision&) = delete;
  ProductPrecision& operator=(const ProductPrecision&) = delete;
  Gemm<Space>& gemm;
};

// The products of updates with bases, roots and factors, in the precision of optimizer.matmul_precision: in bf16 both
// operands are rounded in the workspace, in tf32 by the device as it reads them, and sums stay in fp32. Products of
// refreshes are in fp32 always: an error of theirs would stay in the basis.
template <class Space>
struct Products {
  Stream<Space>& stream;
  MatmulPrecision precision = MatmulPrecision::fp32;

  // Computes C = alpha op_a(A) op_b(B) + beta C.
  void multiply(Op op_a, Op op_b, float alpha, Matrix<const float, Space> a, Matrix<const float, Space> b, float beta,
                Matrix<float, Space> c) const;
  // Computes C = alpha op(A) op(A)^T + beta C, where C is symmetric.
  void symmetric(Op op, float alpha, Matrix<const float, Space> a, float beta, Matrix<float, Space> c) const;
};
// Takes what one of these products takes: of a matrix (rows, cols) with a square on either side, or with itself.
template <class Space>
void declare_products(Workspace<Space>&, MatmulPrecision, std::size_t rows, std::size_t cols);

template <class Space>
bool is_zero(Stream<Space>&, Matrix<const float, Space> x);  // fences

template <class Space>
struct Side {
  StateArray<Space> factor, basis;  // (d, d); (0, 0): none kept
  std::string name;                 // name of the factor, for messages
  std::int64_t* failures = nullptr;
  std::int64_t* drifted = nullptr;  // 1: it is refreshed at the next update; null: refreshes come by period
  std::size_t number = 0;           // number among the port's sides
  bool on() const { return basis.extent(0) != 0; }
};

struct RefreshRule {
  BasisForm first = BasisForm::gram;
  RefreshMethod method = RefreshMethod::power_qr;
  bool sort = true;     // columns by falling q^T K q, which power_qr can do
  bool permute = true;  // what lies in the basis is permuted with the columns
  double shift = 0;     // of power_qr, see RefreshJob
  bool sorts() const { return sort && method == RefreshMethod::power_qr; }
};

template <class Space>
class TwoSided {
 public:
  // Takes the sides of which the state has basis_left, basis_right; the state must outlive this.
  TwoSided(MatrixState<Space>&, const MatrixOptions&, BasisForm first, MatmulPrecision, std::size_t rows,
           std::size_t cols);

  Side<Space> left, right;

  // Computes out = alpha Ql^T X Qr, at least one side being on. scratch (m, n); neither may overlap X.
  void rotate(Stream<Space>&, float alpha, Matrix<const float, Space> x, Matrix<float, Space> scratch,
              Matrix<float, Space> out) const;
  // Returns Ql D Qr^T, in scratch or in D, which is used up.
  Matrix<float, Space> rotate_back(Stream<Space>&, Matrix<float, Space> d, Matrix<float, Space> scratch) const;

  Products<Space> products(Stream<Space>& stream) const { return {stream, precision_}; }

  // Computes K = keep K + add G G^T, or G^T G.
  void accumulate(Stream<Space>&, double keep, double add, Matrix<const float, Space> gradient) const;

  // Makes bases from the singular vectors of the gradient of update t; fences. False: there are none, nothing was
  // written.
  bool first_bases(Stream<Space>&, std::int64_t t, Matrix<const float, Space> gradient);

  // Runs the refresh point of update t: takes what is ready and, where `due`, refreshes both bases or has them
  // refreshed, from the factors given or, where they are (0, 0), those of the sides; fences. InBasis is what is
  // permuted with the columns: moments (m, n), left (m), right (n), each of which may be empty. True: a new basis is in
  // place.
  struct InBasis {
    Matrix<float, Space> moments = {};
    Vector<float, Space> left = {}, right = {};
  };
  struct Point {
    std::int64_t t = 0;
    bool due = false;
    bool in_update = false;  // the update itself refreshes, and no worker
  };
  bool refresh(Stream<Space>&, const RefreshRule&, const Point&, const InBasis&,
               Matrix<const float, Space> left_factor = {}, Matrix<const float, Space> right_factor = {});
  // Returns whether drift decides: then a point that is due is one at which drift is measured, and a side is refreshed
  // at the update after one at which it lay beyond the bound.
  bool by_drift() const { return left.drifted != nullptr || right.drifted != nullptr; }
  // Returns whether the factor of a side is read at this point.
  bool reads_factor(const Side<Space>& side, const Point& point) const {
    return side.on() && (point.due || is_drifted(side));
  }
  // Notes that the bases come from update t by another way.
  void renew(std::int64_t t) { port_.renew(t); }
  RefreshAges ages() const { return port_.ages(); }
  RefreshPort<Space>& port() { return port_; }

 private:
  static bool is_drifted(const Side<Space>& side) { return side.drifted != nullptr && *side.drifted != 0; }
  struct Moved;
  Moved refresh_side(Stream<Space>&, const RefreshRule&, const Point&, const Side<Space>&,
                     Matrix<const float, Space> factor, Vector<std::int32_t, Space> order);
  std::vector<RefreshSide> sides_of(MatrixState<Space>&);

  std::size_t rows_, cols_;
  BasisForm form_;
  MatmulPrecision precision_;
  RefreshPort<Space> port_;
};

// Returns the needs of matrices with bases on these sides, each refreshed by a job.
RefreshNeeds two_sided_needs(const MatrixOptions&, Sides, const RefreshRule&, std::int64_t rows, std::int64_t cols);

// Take what first_bases() after is_zero(), and refresh(), take for a matrix with bases on these sides.
template <class Space>
void declare_first_bases(Workspace<Space>&, BasisForm, Sides, std::size_t rows, std::size_t cols);
template <class Space>
void declare_side_refreshes(Workspace<Space>&, Sides, const RefreshRule&, std::size_t rows, std::size_t cols);

}  // namespace sestina
