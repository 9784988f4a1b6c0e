#include "core/model/head.hpp"

#include "kernels/model/loss.hpp"
#include "kernels/model/split_loss.hpp"

namespace sestina {
namespace {

// body(begin, end, logits) for each slice of rows; logits (end - begin, V) are those of the slice.
template <class Exec, class T, class Body>
void for_slices(Context<Exec>& context, const Matrix<const T, Exec>& head, const Matrix<const T, Exec>& h,
                const Body& body) {
  const int n = context.rows(), step = logit_rows(context.part, n, sizeof(T));
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> buffer = context.workspace.template take<T>(static_cast<std::size_t>(step), head.extent(0));
  for (int begin = 0; begin < n; begin += step) {
    const int end = begin + step < n ? begin + step : n;
    const Matrix<T, Exec> logits = row_range(buffer, 0, end - begin);
    context.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, row_range(h, begin, end), head, 0, logits);
    body(begin, end, logits);
  }
}

template <class View>
View part(const View& v, int begin, int end) {
  return Kokkos::subview(v, std::pair<int, int>(begin, end));
}

// Losses of a slice, and their gradient in place of its logits.
template <class Exec, class T>
void slice_loss(Context<Exec>& context, Vector<const std::int32_t, Exec> targets, Acc<T> scale, bool want_gradient,
                const Matrix<T, Exec>& logits, Vector<Acc<T>, Exec> loss) {
  if (context.part.tp == 1) {
    softmax_cross_entropy<Exec, T>(context.exec, targets, scale, want_gradient, logits, loss);
    return;
  }
  auto frame = context.workspace.frame();
  const int rows = static_cast<int>(logits.extent(0));
  const auto first = static_cast<std::int32_t>(context.part.vocabulary_begin);
  const Vector<Acc<T>, Exec> largest = context.workspace.template take<Acc<T>>(static_cast<std::size_t>(rows));
  const Vector<Acc<T>, Exec> sums = context.workspace.template take<Acc<T>>(2 * static_cast<std::size_t>(rows));
  const Vector<Acc<T>, Exec> sum = part(sums, 0, rows), picked = part(sums, rows, 2 * rows);
  row_largest<Exec, T>(context.exec, targets, logits, largest);
  context.group.max(context.exec, largest);
  row_exponentials<Exec, T>(context.exec, targets, first, largest, logits, sum, picked);
  context.group.sum(context.exec, sums);
  split_cross_entropy<Exec, T>(context.exec, targets, first, largest, sum, picked, scale, want_gradient, logits, loss);
}

}  // namespace

template <class Exec, class T>
void head_loss(Context<Exec>& context, Matrix<const T, Exec> head, Matrix<T, Exec> h,
               Vector<const std::int32_t, Exec> targets, Vector<Acc<T>, Exec> token_loss) {
  auto frame = context.workspace.frame();
  const Matrix<const T, Exec> all = whole_rows<T>(context, h);
  for_slices<Exec, T>(context, head, all, [&](int begin, int end, const Matrix<T, Exec>& logits) {
    slice_loss<Exec, T>(context, part(targets, begin, end), 0, false, logits, part(token_loss, begin, end));
  });
}

template <class Exec, class T>
void head_loss_backward(Context<Exec>& context, Matrix<const T, Exec> head, Matrix<T, Exec> h,
                        Vector<const std::int32_t, Exec> targets, Acc<T> gradient_scale, bool accumulate,
                        Vector<Acc<T>, Exec> token_loss, Matrix<T, Exec> dh, Matrix<Acc<T>, Exec> d_head) {
  auto frame = context.workspace.frame();
  const Matrix<const T, Exec> all = whole_rows<T>(context, h);
  sum_rows<T>(context, dh, [&](const Matrix<T, Exec>& partial) {
    for_slices<Exec, T>(context, head, all, [&](int begin, int end, const Matrix<T, Exec>& logits) {
      slice_loss<Exec, T>(context, part(targets, begin, end), gradient_scale, true, logits,
                          part(token_loss, begin, end));
      context.gemm.template operator()<T, T>(Op::none, Op::none, 1, logits, head, 0, row_range(partial, begin, end));
      context.gemm.template operator()<T, Acc<T>>(Op::transpose, Op::none, 1, logits, row_range(all, begin, end),
                                                  accumulate || begin > 0 ? 1 : 0, d_head);
    });
  });
}

#define SESTINA_HEAD(Exec, T)                                                                                     \
  template void head_loss<Exec, T>(Context<Exec>&, Matrix<const T, Exec>, Matrix<T, Exec>,                        \
                                   Vector<const std::int32_t, Exec>, Vector<Acc<T>, Exec>);                       \
  template void head_loss_backward<Exec, T>(Context<Exec>&, Matrix<const T, Exec>, Matrix<T, Exec>,               \
                                            Vector<const std::int32_t, Exec>, Acc<T>, bool, Vector<Acc<T>, Exec>, \
                                            Matrix<T, Exec>, Matrix<Acc<T>, Exec>);
SESTINA_INSTANTIATE(SESTINA_HEAD)

}  // namespace sestina
