// SOAP-Muon on one matrix (soap_muon.hpp).
#pragma once
#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/methods/soap_muon/soap_muon.hpp"
#include "core/optimizer/methods/two_sided.hpp"

namespace sestina {

RefreshRule soap_muon_refresh(const SoapMuonOptions&);

template <class Space>
class SoapMuonUpdates;  // of many matrices together: soap_muon_updates.hpp

template <class Space>
class SoapMuon final : public MatrixOptimizer<Space> {
 public:
  using Batch = SoapMuonUpdates<Space>;

  SoapMuon(const Space&, const MatrixOptions&, const MatrixShape&);
  static void declare_scratch(Workspace<Space>&, const MatrixOptions&, std::size_t rows, std::size_t cols);

  void step(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&) override;
  MatrixState<Space>& state() override { return state_; }
  bool repeats(const RefreshPolicy&) override;
  RefreshAges ages() const override { return sides_.ages(); }
  RefreshPort<Space>* port() override { return &sides_.port(); }

 private:
  friend class SoapMuonUpdates<Space>;

  // Moves the weight; products of Newton-Schulz are in T.
  template <class T>
  void move(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&);
  // Returns D with the norm of u, whose squares are given. Newton-Schulz divides by that norm again, whatever it is, so
  // that only its eps sees it: the Frobenius norm serves, which costs no product.
  Matrix<const float, Space> whitened(Stream<Space>&, const Blend<Space>& u, Vector<double, Space> squares);
  // Lets factors and bases follow the gradient; they start with the first one that is not zero, which alone has
  // eigenvectors worth keeping.
  void follow(Stream<Space>&, double gradient_scale, Matrix<const float, Space> gradient);
  void refresh(Stream<Space>&);

  SoapMuonOptions keys_;
  std::int64_t refresh_every_;
  MatrixShape shape_;
  MuonRule rule_;
  MatrixState<Space> state_;
  TwoSided<Space> sides_;
  Matrix<float, Space> momentum_, second_moment_;
  std::int64_t &updates_, &started_;
};

}  // namespace sestina
