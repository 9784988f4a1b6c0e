#include "kernels/model/attention.hpp"

#include "kernels/model/attention_blocked.hpp"
#include "kernels/model/attention_rows.hpp"
#include "kernels/model/host/attention_native.hpp"

namespace sestina {

template <class Exec, class T>
void attention(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> q, Matrix<const T, Exec> k,
               Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> out,
               Vector<Acc<T>, Exec> lse, Workspace<Exec>& workspace, Vector<Acc<T>, Exec> largest) {
  if constexpr (std::is_same_v<Exec, Host>) {
    const attention_blocked::Forward<T> pass{{shape, q, k, v, first_key}, out, lse, largest};
    attention_native::run_forward<T>(exec, pass, workspace);
  } else {
    attention_rows::forward<Exec, T>(exec, shape, q, k, v, first_key, out, lse, largest);
  }
}

template <class Exec, class T>
void attention_backward(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> dout,
                        Matrix<const T, Exec> q, Matrix<const T, Exec> k, Matrix<const T, Exec> v,
                        Vector<const std::int32_t, Exec> first_key, Matrix<const T, Exec> out,
                        Vector<const Acc<T>, Exec> lse, Matrix<T, Exec> dq, Matrix<T, Exec> dk, Matrix<T, Exec> dv,
                        Workspace<Exec>& workspace) {
  if constexpr (std::is_same_v<Exec, Host>) {
    const attention_blocked::Backward<T> pass{{shape, q, k, v, first_key}, dout, out, lse, dq, dk, dv};
    attention_native::run_backward<T>(exec, pass, workspace);
  } else {
    attention_rows::backward<Exec, T>(exec, shape, dout, q, k, v, first_key, out, lse, dq, dk, dv, workspace);
  }
}

// Takes at least what attention_rows takes, which tests run in the same workspace.
template <class T, class Exec>
void declare_attention(Workspace<Exec>& workspace, int threads, const AttentionShape& shape) {
  declare<attention_rows::DeltaScratch<Exec, T>>(workspace, shape);
  if constexpr (std::is_same_v<Exec, Host>) {
    if (threads == 0) return;
    attention_native::declare_forward<T>(workspace, threads, shape);
    attention_native::declare_backward<T>(workspace, threads, shape);
  }
}

#define SESTINA_ATTENTION(Exec, T)                                                                                   \
  template void attention<Exec, T>(const Exec&, const AttentionShape&, Matrix<const T, Exec>, Matrix<const T, Exec>, \
                                   Matrix<const T, Exec>, Vector<const std::int32_t, Exec>, Matrix<T, Exec>,         \
                                   Vector<Acc<T>, Exec>, Workspace<Exec>&, Vector<Acc<T>, Exec>);                    \
  template void attention_backward<Exec, T>(                                                                         \
      const Exec&, const AttentionShape&, Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<const T, Exec>,       \
      Matrix<const T, Exec>, Vector<const std::int32_t, Exec>, Matrix<const T, Exec>, Vector<const Acc<T>, Exec>,    \
      Matrix<T, Exec>, Matrix<T, Exec>, Matrix<T, Exec>, Workspace<Exec>&);                                          \
  template void declare_attention<T, Exec>(Workspace<Exec>&, int, const AttentionShape&);
SESTINA_INSTANTIATE(SESTINA_ATTENTION)

}  // namespace sestina
