// A linear layer, y = x W^T + b: forward, and the two parts of its backward pass, for N rows, W (out, in). Adjacent
// dense weights are one product; weights in another form go one by one.
#pragma once
#include "core/model/context.hpp"
#include "core/model/linear_form.hpp"
#include "kernels/blas/row_copies.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/thin_product.hpp"

namespace sestina {

template <class Exec, class T>
using LinearWeights = typename Weights<Exec, T>::Linear;
template <class Exec, class T>
using LinearGradients = typename Gradients<Exec, T>::Linear;

// Returns whether products take a weight, or its gradient, by way of scratch: its rows do not begin at multiples of 16
// bytes, where the fast products of a device want them (ModelPart::aligns_rows).
template <class Exec, class Weight>
bool goes_apart(const Context<Exec>& context, const Weight& weight) {
  return context.part.aligns_rows && weight.stride(0) % row_group != 0;
}
// Returns W as a product reads it: itself, or a copy in scratch of the caller's frame.
template <class Exec, class T>
Matrix<const T, Exec> aligned_weight(Context<Exec>& context, Matrix<const T, Exec> weight) {
  if (!goes_apart(context, weight)) return weight;
  const Matrix<T, Exec> copy = take_apart<T>(context.workspace, static_cast<std::int64_t>(weight.extent(0)),
                                             static_cast<std::int64_t>(weight.extent(1)));
  copy_rows<Exec, T>(context.exec, weight, false, copy);
  return copy;
}
// Sets, or adds to, dW (out, in) the product dy^T x.
template <class Exec, class T>
void weight_product(Context<Exec>& context, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, bool accumulate,
                    Matrix<Acc<T>, Exec> dw) {
  const bool apart = goes_apart(context, dw);
  auto frame = context.workspace.frame();
  const Matrix<Acc<T>, Exec> sum = apart
                                       ? take_apart<Acc<T>>(context.workspace, static_cast<std::int64_t>(dw.extent(0)),
                                                            static_cast<std::int64_t>(dw.extent(1)))
                                       : dw;
  context.gemm.template operator()<T, Acc<T>>(Op::transpose, Op::none, 1, dy, x, accumulate && !apart ? 1 : 0, sum);
  if (apart) copy_rows<Exec, Acc<T>>(context.exec, sum, accumulate, dw);
}

// Computes y (N, out) = x (N, in) W^T.
template <class Exec, class T>
void forward_product(Context<Exec>& context, Matrix<const T, Exec> weight, Matrix<const T, Exec> x, Matrix<T, Exec> y) {
  if constexpr (std::is_same_v<Exec, Host>)
    if (context.thin) return thin_product<T>(context.exec, x, weight, y, context.workspace);
  auto frame = context.workspace.frame();
  context.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, x, aligned_weight<Exec, T>(context, weight), 0, y);
}

// Calls body(number, weight, rows) for the weights of a layer that are in another form; rows are columns of y.
template <class Formed, class Body>
void for_formed(const Formed& weights, const Body& body) {
  std::int64_t row = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    body(i, weights[i], std::pair{row, row + weights[i].rows});
    row += weights[i].rows;
  }
}

// Returns the columns of `all` that belong to weight number i, by how many each one has, as a matrix without gaps:
// libraries may sum in another order where rows are padded. Empty where it has none.
template <class Exec, class T, class Width>
Matrix<T, Exec> own_columns(const std::vector<FormedWeight>& weights, std::size_t i, const Matrix<T, Exec>& all,
                            const Width& width) {
  if (all.size() == 0) return {};
  std::int64_t begin = 0;
  for (std::size_t before = 0; before < i; ++before) begin += width(weights[before]);
  return Matrix<T, Exec>(all.data() + all.extent(0) * static_cast<std::size_t>(begin), all.extent(0),
                         static_cast<std::size_t>(width(weights[i])));
}

// Returns the columns that the input part of a layer leaves for its weight part; 0 where it is dense.
template <class Exec, class Linear>
std::int64_t passed_columns(const Context<Exec>& context, const Linear& w) {
  const WeightForm* form = w.formed.empty() ? nullptr : find_weight_form(context.config().linear);
  std::int64_t sum = 0;
  for (const FormedWeight& weight : w.formed) sum += form->passed(context.config().linear, weight.rows, weight.cols);
  return sum;
}
template <class T, class Exec, class Linear>
Matrix<T, Exec> take_passed(Context<Exec>& context, const Linear& w) {
  const std::int64_t width = passed_columns(context, w);
  return width == 0 ? Matrix<T, Exec>() : take_rows<T>(context, width);
}

template <class Exec, class T>
void formed_forward(Context<Exec>& context, const std::vector<FormedWeight>& weights, Matrix<const T, Exec> x,
                    Matrix<T, Exec> kept, Matrix<T, Exec> y) {
  const LinearOptions& options = context.config().linear;
  const WeightForm& form = *find_weight_form(options);
  const auto width = [&](const FormedWeight& w) { return form.kept(options, w.rows, w.cols); };
  for_formed(weights, [&](std::size_t i, const FormedWeight& w, std::pair<std::int64_t, std::int64_t> rows) {
    linear_form<Exec, T>(options).forward(context, w, x, own_columns<Exec, T>(weights, i, kept, width),
                                          columns(y, rows.first, rows.second));
  });
}

// Computes y (N, out) from x (N, in) without the bias; kept (N, kept columns) or empty, see LinearForm.
template <class Exec, class T>
void linear_product(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> x,
                    Matrix<T, Exec> kept, Matrix<T, Exec> y) {
  if (w.formed.empty())
    forward_product<Exec, T>(context, w.weight, x, y);
  else
    formed_forward<Exec, T>(context, w.formed, x, kept, y);
}

// Computes y (N, out) from x (N, in).
template <class Exec, class T>
void linear_forward(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> x, Matrix<T, Exec> y,
                    Matrix<T, Exec> kept = {}) {
  linear_product<Exec, T>(context, w, x, kept, y);
  if (w.bias.size() > 0) add_bias<Exec, T>(context.exec, w.bias, y);
}

// Computes the own rows of y (N, out) where each rank holds some of the columns of x (N, in) and of W.
template <class Exec, class T>
void linear_forward_summed(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> x,
                           Matrix<T, Exec> y, Matrix<T, Exec> kept = {}) {
  sum_rows<T>(context, y,
              [&](const Matrix<T, Exec>& partial) { linear_product<Exec, T>(context, w, x, kept, partial); });
  if (w.bias.size() > 0) add_bias<Exec, T>(context.exec, w.bias, y);
}

// Computes dx (N, in) = dy W. passed comes from take_passed, for the weight part.
template <class Exec, class T>
void linear_backward_input(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> dy,
                           Matrix<T, Exec> dx, Matrix<T, Exec> passed = {}) {
  if (!w.formed.empty()) {
    const LinearOptions& options = context.config().linear;
    const WeightForm& form = *find_weight_form(options);
    const auto width = [&](const FormedWeight& one) { return form.passed(options, one.rows, one.cols); };
    return for_formed(
        w.formed, [&](std::size_t i, const FormedWeight& one, std::pair<std::int64_t, std::int64_t> rows) {
          linear_form<Exec, T>(options).backward_input(context, one, columns(dy, rows.first, rows.second), i > 0,
                                                       own_columns<Exec, T>(w.formed, i, passed, width), dx);
        });
  }
  auto frame = context.workspace.frame();
  context.gemm.template operator()<T, T>(Op::none, Op::none, 1, dy, aligned_weight<Exec, T>(context, w.weight), 0, dx);
}

// Computes the own rows of dx (N, in) where each rank holds some of the columns of dy (N, out) and of the rows of W.
template <class Exec, class T>
void linear_backward_input_summed(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> dy,
                                  Matrix<T, Exec> dx, Matrix<T, Exec> passed = {}) {
  sum_rows<T>(context, dx,
              [&](const Matrix<T, Exec>& partial) { linear_backward_input<Exec, T>(context, w, dy, partial, passed); });
}

// Input that a layer in another form than dense needs for its weight part, in addition to dy and x.
template <class Exec, class T>
struct FormedInput {
  const std::vector<FormedWeight>& weights;
  Matrix<const T, Exec> kept, passed;
};
template <class Exec, class T>
void formed_backward_weight(Context<Exec>& context, const FormedInput<Exec, T>& in, Matrix<const T, Exec> dy,
                            Matrix<const T, Exec> x, bool accumulate, const std::vector<FormedWeight>& gradients) {
  const LinearOptions& options = context.config().linear;
  const WeightForm& form = *find_weight_form(options);
  const auto kept = [&](const FormedWeight& one) { return form.kept(options, one.rows, one.cols); };
  const auto passed = [&](const FormedWeight& one) { return form.passed(options, one.rows, one.cols); };
  for_formed(in.weights, [&](std::size_t i, const FormedWeight& one, std::pair<std::int64_t, std::int64_t> rows) {
    linear_form<Exec, T>(options).backward_weight(
        context, one, columns(dy, rows.first, rows.second), x, own_columns<Exec, const T>(in.weights, i, in.kept, kept),
        own_columns<Exec, const T>(in.weights, i, in.passed, passed), accumulate, gradients[i]);
  });
}

// Sets, or adds to, dW (out, in) the product dy^T x, and db the column sums of dy.
template <class Exec, class T>
void linear_backward_weight(Context<Exec>& context, const LinearWeights<Exec, T>& w, Matrix<const T, Exec> dy,
                            Matrix<const T, Exec> x, bool accumulate, const LinearGradients<Exec, T>& g,
                            Matrix<const T, Exec> kept = {}, Matrix<const T, Exec> passed = {}) {
  if (!w.formed.empty())
    formed_backward_weight<Exec, T>(context, {w.formed, kept, passed}, dy, x, accumulate, g.formed);
  else if (g.parts == 0)
    weight_product<Exec, T>(context, dy, x, accumulate, g.weight);
  std::int64_t row = 0;
  for (int i = 0; i < g.parts; ++i) {
    const Matrix<Acc<T>, Exec>& part = g.part[static_cast<std::size_t>(i)];
    const auto end = row + static_cast<std::int64_t>(part.extent(0));
    weight_product<Exec, T>(context, columns(dy, row, end), x, accumulate, part);
    row = end;
  }
  if (g.bias.size() == 0) return;
  start_sum(context.exec, g.bias, accumulate);
  bias_backward<Exec, T>(context.exec, dy, g.bias, context.workspace);
}

}  // namespace sestina
