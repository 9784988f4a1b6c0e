// The reductions once more, in the form that devices run, on the host: this program's sums are these.
#include "kernels/blas/exec.hpp"

namespace sestina {

template <>
inline constexpr bool is_host<Host> = false;
template <>
inline constexpr bool is_host<Serial> = false;

}  // namespace sestina

#include "kernels/blas/sums.cpp"
