// The row kernels once more, in the form that devices run, by teams and in pieces of 16 bytes, on the host: this
// program's are these.
#include "kernels/blas/exec.hpp"

namespace sestina {

template <>
inline constexpr bool is_host<Host> = false;

}  // namespace sestina

#include "kernels/blas/rows.hpp"

static_assert(!std::is_same_v<sestina::RowLane<sestina::Host>, sestina::HostLane>);

#include "kernels/model/activation.cpp"
#include "kernels/model/activation_rope.cpp"
#include "kernels/model/loss.cpp"
#include "kernels/model/loss_split.cpp"
#include "kernels/model/norm.cpp"
#include "kernels/model/norm_gainless.cpp"
#include "kernels/model/norm_split.cpp"
#include "kernels/model/soft_cap.cpp"
