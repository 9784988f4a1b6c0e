// Copies between matrices whose rows lie apart differently.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Sets to = from, or to = to + from; both (m, n). Does not fence.
template <class Exec, class T>
void copy_rows(const Exec&, Matrix<const T, Exec> from, bool adds, Matrix<T, Exec> to);

}  // namespace sestina
