// The two-sided factors of KL-Shampoo and KL-SOAP (arXiv 2509.03378): each is a mean of the gradient's outer product,
// whitened by the other side, whose running eigenvalues are kept next to the bases. G is the gradient, M the momentum,
// Ql and Qr the bases.
#pragma once
#include "core/optimizer/methods/kl/kl_shampoo.hpp"
#include "core/optimizer/methods/two_sided.hpp"

namespace sestina {

// The keys, and the numbers that follow from them.
struct KlRule : KlOptions {
  RefreshRule refresh{.sort = false};
  std::int64_t refresh_every = 10;

  KlRule(const KlOptions& keys, const MatrixOptions& options)
      : KlOptions(keys), refresh{.first = keys.basis_first, .sort = keys.sort}, refresh_every(options.refresh_every) {}
  bool skips_first() const { return first_step == FirstStep::skip; }
  bool starts_from_gradient() const { return eigenvalue_start == Start::gradient; }
  double ceiling(std::size_t d) const;  // limit of inverse roots for a side of size d; 0: none
};

// Fills the row of either kind; keys must have been read.
void fill_kl_kind(MatrixKind&, bool second_moment);
// Returns what is executed: `per_product` a^2 b for each side of length a with the other one b.
UpdateWork kl_work(BasisForm first, std::int64_t rows, std::int64_t cols, double per_product);

template <class Space>
class KlFactors {
 public:
  KlFactors(MatrixState<Space>&, const MatrixOptions&, const KlRule&, std::size_t rows, std::size_t cols);

  const TwoSided<Space>& sides() const { return sides_; }
  TwoSided<Space>& sides() { return sides_; }
  Vector<float, Space> eigenvalues(bool left) const { return left ? left_values_ : right_values_; }

  // Makes the first call, after so many updates: bases from the gradient, eigenvalues all equal, factors from it. At
  // the scale of the gradient, the eigenvalues are its root mean square g: the product of both sides is then the mean
  // square, as it is in the long run, and the factors are whitened by it. Given eigenvalues take 1 / (1 - factor_beta)
  // updates to get there; factors start without whitening then. False: the gradient is zero.
  bool start(Stream<Space>&, std::int64_t updates, double gradient_scale, Matrix<const float, Space> gradient);

  // The inverse roots of the eigenvalues, as the whole update uses them.
  struct Roots {
    Roots(Workspace<Space>& workspace, std::size_t m, std::size_t n)
        : left(workspace.template take<float>(m)), right(workspace.template take<float>(n)) {}
    Vector<float, Space> left, right;  // (m), (n)
  };
  Roots roots(Stream<Space>&) const;  // in the stream's workspace

  // Computes half = G Qr, rotated = Ql^T G Qr.
  void rotate(Stream<Space>&, double gradient_scale, Matrix<const float, Space> gradient, Matrix<float, Space> half,
              Matrix<float, Space> rotated) const;
  // Takes the gradient into factors and eigenvalues; uses up what rotate() gave.
  void accumulate(Stream<Space>&, double gradient_scale, const Roots&, Matrix<const float, Space> gradient,
                  Matrix<float, Space> half, Matrix<float, Space> rotated);
  // Runs the refresh point of an update; second_moment may be (0, 0).
  void refresh(Stream<Space>&, const typename TwoSided<Space>::Point&, Matrix<float, Space> second_moment);

 private:
  KlRule rule_;
  std::size_t rows_, cols_;
  TwoSided<Space> sides_;
  Vector<float, Space> left_values_, right_values_;
};

// Takes what an update of either kind takes, start() and refresh() included.
template <class Space>
void declare_kl_update(Workspace<Space>&, const MatrixOptions&, const KlRule&, std::size_t rows, std::size_t cols);

template <class Space>
class KlUpdates;  // of many matrices together: kl_updates.hpp

// The frame of both kinds: the first call, the update that is theirs, and the refresh point after it.
template <class Space>
class KlMethod : public MatrixOptimizer<Space> {
 public:
  KlMethod(const Space&, const MatrixOptions&, const KlRule&, const MatrixShape&);

  void step(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&) final;
  MatrixState<Space>& state() final { return state_; }
  bool repeats(const RefreshPolicy&) final;
  RefreshAges ages() const final { return factors_.sides().ages(); }
  RefreshPort<Space>* port() final { return &factors_.sides().port(); }

 protected:
  // Moves the weight, and has factors_ take in the gradient. half and rotated (m, n) may be used up.
  virtual void update(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&,
                      const typename KlFactors<Space>::Roots&, Matrix<float, Space> half,
                      Matrix<float, Space> rotated) = 0;
  virtual Matrix<float, Space> second_moment() const { return {}; }  // in the bases; (0, 0): none

  // Adds (1 - beta1) (G - M) to M, and sets rotated = Ql^T M Qr; half is scratch.
  void rotate_momentum(Stream<Space>&, double gradient_scale, Matrix<const float, Space> gradient,
                       Matrix<float, Space> half, Matrix<float, Space> rotated);
  // Moves the weight by the direction in the bases, which is used up, as half is.
  void move(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&, Matrix<float, Space> rotated,
            Matrix<float, Space> half);

  KlRule rule_;
  MatrixShape shape_;
  MatrixState<Space> state_;
  KlFactors<Space> factors_;

 private:
  friend class KlUpdates<Space>;
  void refresh(Stream<Space>&);  // runs the refresh point of the update now made

  Matrix<float, Space> momentum_;  // in the original basis
  std::int64_t &updates_, &started_;
};

}  // namespace sestina
