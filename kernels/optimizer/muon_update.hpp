// The last passes of Muon and of its relatives: from the orthogonalised direction O in wide form (wide_form.hpp) to the
// weight. NorMuon (Li et al. 2025) and AdaMuon (Si et al. 2025) divide O by the root of a running mean of its squares,
// the one by rows or columns, the other by element; then the Frobenius norm of O is given back to the direction.
#pragma once
#include "kernels/blas/wide_form.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

// W (m, n) moves along O; weight (m, n) or (0, 0): the rounded copy. One pass over everything.
template <class Space, class T>
void move_weight_wide(const Space&, const WeightMove&, Matrix<const T, Space> direction, Matrix<float, Space> master,
                      Matrix<bf16, Space> weight);

struct SecondMoment {
  double beta2 = 0.95;
  double eps = 1e-8;      // NorMuon: the least mean; AdaMuon: added to the root
  bool keep_norm = true;  // false: the published divisions alone
};

// second_moment (max(m, n)): of the mean squares of the rows of O where m >= n, else of its columns.
template <class Space, class T>
void move_weight_normuon(const Space&, const WeightMove&, const SecondMoment&, Matrix<const T, Space> direction,
                         Vector<float, Space> second_moment, Matrix<float, Space> master, Matrix<bf16, Space> weight,
                         Workspace<Space>&);
template <class Space>
struct NorMuonScratch {
  NorMuonScratch(Workspace<Space>& workspace, std::size_t lines)  // of the longer side
      : squares(workspace.template take<double>(lines)),
        gain(workspace.template take<float>(lines)),
        scale(workspace.template take<float>(1)) {}
  Vector<double, Space> squares;
  Vector<float, Space> gain, scale;
};

// second_moment (m, n): of the squares of O.
template <class Space, class T>
void move_weight_adamuon(const Space&, const WeightMove&, const SecondMoment&, Matrix<const T, Space> direction,
                         Matrix<float, Space> second_moment, Matrix<float, Space> master, Matrix<bf16, Space> weight,
                         Workspace<Space>&);
template <class Space>
struct AdaMuonScratch {
  AdaMuonScratch(Workspace<Space>& workspace, std::size_t rows)
      : before(workspace.template take<double>(band_count(rows))),
        after(workspace.template take<double>(band_count(rows))),
        scale(workspace.template take<float>(1)) {}
  Vector<double, Space> before, after;  // squares by bands, of the direction and of the adapted one
  Vector<float, Space> scale;
};

}  // namespace sestina
