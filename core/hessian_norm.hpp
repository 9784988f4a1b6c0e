// Norms of a Hessian H that nobody can store, from products with random vectors: the (1,1)-norm, sum of |H_ij|, which
// is least where the coordinates are the eigenbasis (arXiv 2602.03515), and the Frobenius norm, which no rotation
// changes.
//
// Rows are measured by Cauchy vectors: for v of independent standard Cauchy numbers (H v)_j is ||H_j||_1 times such a
// number. Over k products the geometric mean of |(H v)_j| times cos(pi / 2k)^k is an estimate of ||H_j||_1 without
// bias, with a relative deviation of about pi / (2 sqrt(k)) (Li, "Nonlinear estimators and tail bounds for dimension
// reduction in l1 using Cauchy random projections", JMLR 2007): as good as the median of the k, and no product has to
// be kept. The Frobenius norm follows from E |H r|^2 = ||H||_F^2 for r of independent signs.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/model/transformer.hpp"
#include "core/slot_pool.hpp"
#include "kernels/blas/gemm.hpp"

namespace sestina {

// Computes the gradient g of a function at a point w; both have the same length.
using GradientAt = std::function<void(const std::vector<double>& at, std::vector<double>& gradient)>;

// Products H v by central differences, (g(w + h u) - g(w - h u)) |v| / 2h for u = v / |v|: linear in v, so that the
// step h does not follow v, whose largest entries are huge.
class HessianProducts {
 public:
  // step: h, relative to the root mean square of the point.
  HessianProducts(GradientAt, std::vector<double> at, double step = 0.01);
  std::size_t size() const { return at_.size(); }
  void times(const std::vector<double>& v, std::vector<double>& product);
  // Returns the relative error of a product, in the sum of absolute values: a third of what a step twice as long
  // changes.
  double error(const std::vector<double>& v);

 private:
  void differences(const std::vector<double>& v, double step, std::vector<double>& product);
  GradientAt gradient_;
  std::vector<double> at_, moved_, ahead_, behind_;
  double step_;
};

// Coordinates that are a matrix W (rows, cols), or a block of one, seen as W = U X V^T with coordinates X. An empty
// basis is the identity.
struct RotatedCoordinates {
  std::size_t begin = 0, rows = 0, cols = 0;
  std::vector<double> left, right;  // U (rows, rows), V (cols, cols), orthogonal
  std::size_t row_stride = 0;       // coordinates from a row to the next; 0: cols
};
// Turns coordinates X of the matrices into W, or with `back` the other way round (as gradients go too); others stay.
void rotate_coordinates(Gemm<Host>&, const std::vector<RotatedCoordinates>&, bool back,
                        std::vector<double>& coordinates);

// Ranks that take vectors in turn, each with the whole function: all of them call an estimate and get the same bits,
// those of one rank, since what the vectors give is added up in their order.
struct VectorRanks {
  int rank = 0, size = 1;
  // Brings n numbers of each rank to all, by rank.
  std::function<void(const double* mine, std::size_t n, double* all)> gather;
};

// Returns ||H_j||_1 of every row from so many vectors, drawn from the seed alone. rotated: H in the coordinates X.
std::vector<double> hessian_row_norms(HessianProducts&, Gemm<Host>&, const std::vector<RotatedCoordinates>& rotated,
                                      int vectors, std::uint64_t seed, const VectorRanks& ranks = {});
double hessian_frobenius(HessianProducts&, int vectors, std::uint64_t seed, const VectorRanks& ranks = {});

// Sets v to vector `number` of the seed.
void cauchy_vector(std::uint64_t seed, int number, std::vector<double>& v);

// The mean loss of fixed batches as a function of all weights of a model, in double on the host: diagnostics take
// differences of its gradient at any point.

// A batch of the micro-batch size, see BatchView.
struct FixedBatch {
  std::vector<std::int32_t> tokens, first_key;  // (B, T + 1); (B, T) or empty
};

class LossGradient {
 public:
  // The model must have dense weights.
  LossGradient(const Host&, const ModelConfig&, int micro_batch, int sequence, const std::vector<FixedBatch>&);

  const std::vector<TensorSpec>& specs() const { return arena_.specs(); }
  std::size_t size() const { return size_; }  // numbers: tensors one after another, in the order of the specs
  // Returns the loss.
  double operator()(const std::vector<double>& at, std::vector<double>& gradient);

 private:
  Host exec_;
  Transformer<Host, double> model_;
  Arena<Host, double> arena_;
  Weights<Host, double> weights_;
  Gradients<Host, double> gradients_;
  Activations<Host, double> slot_;
  std::vector<std::unique_ptr<TokenSlot<Host>>> batches_;
  BlockHooks hooks_;
  std::size_t size_ = 0;
  double scale_ = 1;  // 1 / tokens that count
};

}  // namespace sestina
