#include "kernels/model/attention.hpp"

#include "kernels/model/attention_blocked.hpp"
#include "kernels/model/device/attention_fused.hpp"
#include "kernels/model/device/attention_rows.hpp"
#include "kernels/model/host/attention_native.hpp"

namespace sestina {
namespace {

// A space whose work goes to a stream of CUDA.
template <class Exec>
concept HasStream = requires(const Exec& exec) {
  exec.cuda_stream();
};

// Computes a pass by the device's library where that has a plan for it, and returns whether it has.
template <class Exec>
bool run_fused(const Exec& exec, const fused_attention::Shape& shape, fused_attention::Pass pass,
               const fused_attention::Pointers& at, Workspace<Exec>& workspace) {
  const fused_attention::Plan* const plan =
      fused_attention::is_aligned(at) ? fused_attention::find_plan(shape, pass) : nullptr;
  if (plan == nullptr) return false;
  const auto frame = workspace.frame();
  fused_attention::run(exec.cuda_stream(), *plan, shape, pass, at,
                       workspace.template take<std::byte>(plan->scratch).data());
  return true;
}

// With the strides of the first of its fields, (N, .) each.
fused_attention::Shape fused_shape(const AttentionShape& s, std::initializer_list<std::size_t> strides) {
  fused_attention::Shape shape{s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, s.scale};
  std::copy(strides.begin(), strides.end(), shape.stride.begin());
  return shape;
}

// Before the device has begun, what is expected of it.
std::size_t fused_scratch(const fused_attention::Shape& shape, fused_attention::Pass pass) {
  if (!Kokkos::is_initialized()) return fused_attention::expected_scratch(shape, pass);
  const fused_attention::Plan* const plan = fused_attention::find_plan(shape, pass);
  return plan != nullptr ? plan->scratch : 0;
}

// Takes the scratch of both passes over buffers of these columns.
template <class Exec>
void declare_fused(Workspace<Exec>& workspace, const AttentionShape& s, AttentionColumns columns) {
  const auto wide = static_cast<std::size_t>(s.heads * s.head_dim),
             narrow = static_cast<std::size_t>(s.kv_heads * s.head_dim);
  const auto or_own = [](int fused, std::size_t own) { return fused > 0 ? static_cast<std::size_t>(fused) : own; };
  const std::size_t q = or_own(columns.qk, wide), k = or_own(columns.qk, narrow), v = or_own(columns.qkv, narrow),
                    dq = or_own(columns.qkv, wide);
  for (const auto& [pass, shape] :
       {std::pair(fused_attention::Pass::forward, fused_shape(s, {q, k, v, wide})),
        std::pair(fused_attention::Pass::backward, fused_shape(s, {q, k, v, wide, 0, wide, dq, v, v}))}) {
    const auto frame = workspace.frame();
    workspace.template take<std::byte>(fused_scratch(shape, pass));
  }
}

}  // namespace

template <class Exec, class T>
void attention(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> q, Matrix<const T, Exec> k,
               Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> out,
               Vector<Acc<T>, Exec> lse, Workspace<Exec>& workspace, Vector<Acc<T>, Exec> largest) {
  if constexpr (std::is_same_v<Exec, Host>) {
    const attention_blocked::Forward<T> pass{{shape, q, k, v, first_key}, out, lse, largest};
    attention_native::run_forward<T>(exec, pass, workspace);
  } else {
    if constexpr (HasStream<Exec> && std::is_same_v<T, bf16>)
      if (first_key.size() == 0 && largest.size() == 0 &&
          run_fused(exec, fused_shape(shape, {q.stride(0), k.stride(0), v.stride(0), out.stride(0)}),
                    fused_attention::Pass::forward, {q.data(), k.data(), v.data(), out.data(), lse.data()}, workspace))
        return;
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
    if constexpr (HasStream<Exec> && std::is_same_v<T, bf16>)
      if (first_key.size() == 0 &&
          run_fused(
              exec,
              fused_shape(shape, {q.stride(0), k.stride(0), v.stride(0), out.stride(0), 0, dout.stride(0), dq.stride(0),
                                  dk.stride(0), dv.stride(0)}),
              fused_attention::Pass::backward,
              {q.data(), k.data(), v.data(), out.data(), lse.data(), dout.data(), dq.data(), dk.data(), dv.data()},
              workspace))
        return;
    attention_rows::backward<Exec, T>(exec, shape, dout, q, k, v, first_key, out, lse, dq, dk, dv, workspace);
  }
}

// Takes at least what attention_rows takes, which tests run in the same workspace. A plan of training counts in one of
// the host what its device will take: threads is 0.
template <class T, class Exec>
void declare_attention(Workspace<Exec>& workspace, int threads, const AttentionShape& shape,
                       [[maybe_unused]] AttentionColumns columns) {
  declare<attention_rows::DeltaScratch<Exec, T>>(workspace, shape);
  if constexpr (std::is_same_v<T, bf16>)
    if (threads == 0) declare_fused(workspace, shape, columns);
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
  template void declare_attention<T, Exec>(Workspace<Exec>&, int, const AttentionShape&, AttentionColumns);
SESTINA_INSTANTIATE(SESTINA_ATTENTION)

}  // namespace sestina
