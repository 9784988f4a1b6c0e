// Attention, both ways, compared with the softmax of its formula for the query heads of the last key head in the last
// sequence.
#include <fmt/format.h>

#include "core/check/checker.hpp"
#include "kernels/model/attention.hpp"

namespace sestina {
namespace {

// The inputs of one query head and its key head, copied out of fused matrices, and what the formula makes of them.
struct PlainHead {
  std::size_t T = 0, h = 0;
  double scale = 1;
  std::vector<double> q, k, v, dout;         // (T, h)
  std::vector<double> out, dq, dk, dv, lse;  // (T, h), lse (T)
};

// Causal softmax attention, row by row: p_ij = exp(scale q_i k_j - lse_i) for j <= i; out = p v; and backward
// ds_ij = p_ij (dout_i v_j - dout_i out_i), dq = scale ds k, dk += scale ds^T q, dv += p^T dout.
void attend(PlainHead& at) {
  const auto row = [h = at.h](std::vector<double>& x, std::size_t i) { return x.data() + i * h; };
  const auto dot = [h = at.h](const double* x, const double* y) {
    double sum = 0;
    for (std::size_t c = 0; c < h; ++c) sum += x[c] * y[c];
    return sum;
  };
  const auto add = [h = at.h](double factor, const double* x, double* y) {
    for (std::size_t c = 0; c < h; ++c) y[c] += factor * x[c];
  };
  at.out.assign(at.T * at.h, 0);
  at.dq.assign(at.T * at.h, 0);
  at.lse.assign(at.T, 0);
  std::vector<double> p(at.T);
  for (std::size_t i = 0; i < at.T; ++i) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t j = 0; j <= i; ++j) {
      p[j] = at.scale * dot(row(at.q, i), row(at.k, j));
      largest = std::max(largest, p[j]);
    }
    for (std::size_t j = 0; j <= i; ++j) sum += std::exp(p[j] - largest);
    at.lse[i] = largest + std::log(sum);
    for (std::size_t j = 0; j <= i; ++j) {
      p[j] = std::exp(p[j] - at.lse[i]);
      add(p[j], row(at.v, j), row(at.out, i));
    }
    const double along = dot(row(at.dout, i), row(at.out, i));
    for (std::size_t j = 0; j <= i; ++j) {
      const double ds = at.scale * p[j] * (dot(row(at.dout, i), row(at.v, j)) - along);
      add(ds, row(at.k, j), row(at.dq, i));
      add(ds, row(at.q, i), row(at.dk, j));
      add(p[j], row(at.dout, i), row(at.dv, j));
    }
  }
}

// Columns of one head in the rows of one sequence.
struct HeadPart {
  std::size_t first_row, T, first_col, h, cols;
  std::vector<std::size_t> places() const {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < T; ++i)
      for (std::size_t c = 0; c < h; ++c) result.push_back((first_row + i) * cols + first_col + c);
    return result;
  }
  template <class Field>
  std::vector<double> of(const Field& field) const {
    std::vector<double> result;
    for (const std::size_t place : places()) result.push_back(field.start(place));
    return result;
  }
};

template <class Value>
void append(std::vector<Value>& all, const std::vector<Value>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

template <class Exec, class T>
void check_attention(const CheckContext<Exec>& context) {
  using A = Acc<T>;
  Checker<Exec>& checker = context.checker;
  const ModelConfig& model = context.model();
  const AttentionShape shape{context.batch,
                             context.sequence,
                             static_cast<int>(model.num_attention_heads),
                             static_cast<int>(model.num_key_value_heads),
                             static_cast<int>(model.head_dim),
                             model.attention_scale()};
  const std::size_t N = context.rows(), H = extent(shape.heads), K = extent(shape.kv_heads), h = extent(shape.head_dim),
                    length = extent(shape.sequence), begin = N - length, group = H / K;
  auto q = checker.template numbers<T>(N, H * h), k = checker.template numbers<T>(N, K * h),
       v = checker.template numbers<T>(N, K * h), dout = checker.template numbers<T>(N, H * h);
  auto out = checker.template blank<T>(N, H * h), dq = checker.template blank<T>(N, H * h),
       dk = checker.template blank<T>(N, K * h), dv = checker.template blank<T>(N, K * h);
  auto lse = checker.template blank<A>(1, N * H);

  // dk and dv are sums over the query heads that share the key head.
  const HeadPart keys{begin, length, (K - 1) * h, h, K * h};
  PlainHead plain{length, h, shape.scale, {}, keys.of(k), keys.of(v), {}, {}, {}, {}, {}, {}};
  plain.dk.assign(length * h, 0);
  plain.dv.assign(length * h, 0);
  std::vector<double> outs, dqs, lses;
  std::vector<std::size_t> query_places, lse_places;
  for (std::size_t head = H - group; head < H; ++head) {
    const HeadPart queries{begin, length, head * h, h, H * h};
    plain.q = queries.of(q);
    plain.dout = queries.of(dout);
    attend(plain);
    append(outs, plain.out);
    append(dqs, plain.dq);
    append(lses, plain.lse);
    append(query_places, queries.places());
    for (std::size_t i = 0; i < length; ++i)
      lse_places.push_back(((static_cast<std::size_t>(shape.batch) - 1) * H + head) * length + i);
  }

  Workspace<Exec> workspace(
      bytes_taken<Exec>([&](auto& counter) { declare_attention<T>(counter, checker.exec(), shape); }));
  const std::string text = fmt::format("{} x {}, {} of {} heads, {}", shape.batch, shape.sequence, H, K, h);
  const double pair = 2.0 * static_cast<double>(N) * static_cast<double>(length) / 2 * static_cast<double>(H * h);
  // A sum over up to T keys whose terms are rounded as they are computed; in bf16 weights and results are rounded too,
  // and gradients are products of such.
  const double terms = 8 * std::sqrt(static_cast<double>(length)) * spacing<A>;
  const bool narrow = std::is_same_v<T, bf16>;
  const double forward = (narrow ? 2 : 16) * spacing<T> + terms, backward = (narrow ? 4 : 64) * spacing<T> + 8 * terms;
  // A device's library may find exponentials by fewer bits, for weights that it rounds.
  const double logs = narrow && !is_host<Exec> ? spacing<T> / 8 : 64 * spacing<A>;
  checker.check(
      {"attention: forward", text, 2 * pair},
      {expected("out", out, forward, outs, query_places), expected("log-sum-exp", lse, logs, lses, lse_places)}, [&] {
        attention<Exec, T>(checker.exec(), shape, q.matrix(), k.matrix(), v.matrix(), {}, out.matrix(), lse.vector(),
                           workspace);
      });
  checker.check({"attention: backward", text, 5 * pair},
                {expected("dq", dq, backward, dqs, query_places), expected("dk", dk, backward, plain.dk, keys.places()),
                 expected("dv", dv, backward, plain.dv, keys.places())},
                [&] {
                  attention_backward<Exec, T>(checker.exec(), shape, dout.matrix(), q.matrix(), k.matrix(), v.matrix(),
                                              {}, out.matrix(), lse.vector(), dq.matrix(), dk.matrix(), dv.matrix(),
                                              workspace);
                });
}

#define SESTINA_CHECK_ATTENTION(Exec, T) template void check_attention<Exec, T>(const CheckContext<Exec>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_ATTENTION)

}  // namespace sestina
