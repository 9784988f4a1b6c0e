// Attention against its definition in double, its gradients against differences of that definition, the forms of the
// host against the plain one.
#include <limits>

#include "../reference.hpp"
#include "kernels/blas/host/tile_kernel.hpp"
#include "kernels/model/attention.hpp"
#include "kernels/model/device/attention_rows.hpp"
#include "kernels/model/host/attention_native.hpp"

namespace sestina {
namespace {

using namespace reference;

struct AttentionProblem {
  AttentionShape shape;
  Array q, k, v;
  std::vector<int> first_key;
  std::size_t rows() const { return static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.sequence); }
};

// Rows see keys of their own document only, when documents > 0: each sequence is cut into documents of uneven lengths.
template <class T>
AttentionProblem make_attention(int batch, int sequence, int heads, int kv_heads, int head_dim, bool documents) {
  AttentionProblem p{
      {batch, sequence, heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<double>(head_dim))}, {}, {}, {}, {}};
  const auto h = static_cast<std::size_t>(head_dim);
  p.q = rounded<T>(random_array(p.rows(), static_cast<std::size_t>(heads) * h, 1));
  p.k = rounded<T>(random_array(p.rows(), static_cast<std::size_t>(kv_heads) * h, 2));
  p.v = rounded<T>(random_array(p.rows(), static_cast<std::size_t>(kv_heads) * h, 3));
  if (documents) {
    std::mt19937 engine(5);
    for (int b = 0; b < batch; ++b) {
      int begin = 0;
      for (int t = 0; t < sequence; ++t) {
        if (engine() % 23 == 0) begin = t;
        p.first_key.push_back(begin);
      }
    }
  }
  return p;
}

struct AttentionResult {
  Array out, lse, largest;  // largest (1, H): scores
};

AttentionResult plain_attention(const AttentionProblem& p, const Array& q, const Array& k, const Array& v) {
  const auto& s = p.shape;
  const auto h = static_cast<std::size_t>(s.head_dim);
  AttentionResult r{Array(q.rows, q.cols), Array(1, static_cast<std::size_t>(s.batch * s.heads * s.sequence)),
                    Array(1, static_cast<std::size_t>(s.heads))};
  for (int head = 0; head < s.heads; ++head) r.largest(0, static_cast<std::size_t>(head)) = -1e30;
  for (int b = 0; b < s.batch; ++b) {
    for (int head = 0; head < s.heads; ++head) {
      const auto qc = static_cast<std::size_t>(head) * h,
                 kc = static_cast<std::size_t>(head / (s.heads / s.kv_heads)) * h;
      for (int i = 0; i < s.sequence; ++i) {
        const auto row = static_cast<std::size_t>(b * s.sequence + i);
        const int first = p.first_key.empty() ? 0 : p.first_key[row];
        std::vector<double> weight;
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int j = first; j <= i; ++j) {
          double score = 0;
          for (std::size_t d = 0; d < h; ++d)
            score += q(row, qc + d) * k(static_cast<std::size_t>(b * s.sequence + j), kc + d);
          weight.push_back(score * s.scale);
          largest = std::max(largest, weight.back());
        }
        double& top = r.largest(0, static_cast<std::size_t>(head));
        top = std::max(top, largest);
        for (double& w : weight) sum += w = std::exp(w - largest);
        r.lse(0, static_cast<std::size_t>((b * s.heads + head) * s.sequence + i)) = largest + std::log(sum);
        for (int j = first; j <= i; ++j) {
          const double w = weight[static_cast<std::size_t>(j - first)] / sum;
          for (std::size_t d = 0; d < h; ++d)
            r.out(row, qc + d) += w * v(static_cast<std::size_t>(b * s.sequence + j), kc + d);
        }
      }
    }
  }
  return r;
}

// The plain form, that of attention(), or one by products of this processor in bf16.
struct AttentionForm {
  bool plain = false;
  const host::AttentionBf16* native = nullptr;
  bool watched = true;  // looks for the largest scores, which the library of a device cannot tell
};

// Returns the ways in which this processor can multiply bf16, be they the fastest or not.
std::vector<const host::AttentionBf16*> native_ways() {
  std::vector<const host::AttentionBf16*> ways;
  if (bf16_way() == Bf16Way::tiles) ways.push_back(host::attention_bf16_passes(Bf16Way::tiles));
  if (host::bf16_kernel(host::VectorLevel::avx512_bf16).run != nullptr)
    ways.push_back(host::attention_bf16_passes(Bf16Way::dot_products));
  return ways;
}

// One run of both passes; q, k, v are column ranges of one fused buffer, as in the model.
template <class Exec, class T>
struct BothPasses {
  using A = Acc<T>;
  Array out, lse, largest, dq, dk, dv;
  BothPasses(const Exec& exec, const AttentionProblem& p, const Array& gradient, const AttentionForm& form) {
    Array fused(p.q.rows, p.q.cols + p.k.cols + p.v.cols);
    for (std::size_t i = 0; i < fused.rows; ++i) {
      for (std::size_t j = 0; j < p.q.cols; ++j) fused(i, j) = p.q(i, j);
      for (std::size_t j = 0; j < p.k.cols; ++j) fused(i, p.q.cols + j) = p.k(i, j);
      for (std::size_t j = 0; j < p.v.cols; ++j) fused(i, p.q.cols + p.k.cols + j) = p.v(i, j);
    }
    Field<T, Exec> qkv(fused, 3), result(p.q.rows, p.q.cols, 1), grad(gradient, 2), to(fused.rows, fused.cols, 5);
    Field<A, Exec> logs(1, static_cast<std::size_t>(p.shape.batch * p.shape.heads * p.shape.sequence));
    Array lowest(1, static_cast<std::size_t>(p.shape.heads));
    for (std::size_t head = 0; head < lowest.cols; ++head) lowest(0, head) = -1e30;
    Field<A, Exec> tops(lowest);
    const Indices<Exec> first(p.first_key);
    auto part = [&](const Matrix<T, Exec>& m, std::size_t begin, std::size_t end) -> Matrix<T, Exec> {
      return Kokkos::subview(m, Kokkos::ALL, std::make_pair(begin, end));
    };
    const std::size_t a = p.q.cols, b = a + p.k.cols, c = b + p.v.cols;
    const Matrix<T, Exec> q = part(qkv.matrix(), 0, a), k = part(qkv.matrix(), a, b), v = part(qkv.matrix(), b, c);
    const Matrix<T, Exec> to_q = part(to.matrix(), 0, a), to_k = part(to.matrix(), a, b),
                          to_v = part(to.matrix(), b, c);
    const AttentionColumns columns{static_cast<int>(c), static_cast<int>(c)};
    Workspace<Exec> workspace(
        bytes_taken<Exec>([&](auto& counter) { declare_attention<T>(counter, exec, p.shape, columns); }));
    if (form.plain) {
      attention_rows::forward<Exec, T>(exec, p.shape, q, k, v, first.vector(), result.matrix(), logs.vector(),
                                       tops.vector());
      attention_rows::backward<Exec, T>(exec, p.shape, grad.read(), q, k, v, first.vector(), result.read(),
                                        logs.read_vector(), to_q, to_k, to_v, workspace);
    } else if (form.native != nullptr) {
      if constexpr (std::is_same_v<Exec, Host> && std::is_same_v<T, bf16>) {
        const attention_blocked::Problem<T> problem{p.shape, q, k, v, first.vector()};
        Workspace<Exec> own(bytes_taken<Exec>([&](auto& counter) {  // this way may not be that of the process
          declare<attention_native::ForwardSlots>(counter, *form.native, p.shape, threads_of(exec));
          declare<attention_native::BackwardSlots>(counter, *form.native, p.shape, threads_of(exec));
        }));
        attention_native::Forward{*form.native, {problem, result.matrix(), logs.vector(), tops.vector()}}.run(exec,
                                                                                                              own);
        attention_native::Backward{*form.native,
                                   {problem, grad.read(), result.read(), logs.read_vector(), to_q, to_k, to_v}}
            .run(exec, own);
      }
    } else {
      attention<Exec, T>(exec, p.shape, q, k, v, first.vector(), result.matrix(), logs.vector(), workspace,
                         form.watched ? tops.vector() : Vector<A, Exec>());
      attention_backward<Exec, T>(exec, p.shape, grad.read(), q, k, v, first.vector(), result.read(),
                                  logs.read_vector(), to_q, to_k, to_v, workspace);
    }
    out = result.get();
    lse = logs.get();
    largest = tops.get();
    dq = Field<T, Exec>(to.get()).get();
    split(dq, a, b, c);
  }

 private:
  void split(Array all, std::size_t a, std::size_t b, std::size_t c) {
    auto cut = [&](std::size_t begin, std::size_t end) {
      Array part(all.rows, end - begin);
      for (std::size_t i = 0; i < all.rows; ++i) {
        for (std::size_t j = begin; j < end; ++j) part(i, j - begin) = all(i, j);
      }
      return part;
    };
    dq = cut(0, a), dk = cut(a, b), dv = cut(b, c);
  }
};

// Scores are sums of head_dim products in Acc<T>; the weights of a row are rounded to T at most once, the results once.
template <class T>
constexpr double attention_tolerance = 3 * epsilon<T> + 64 * epsilon<Acc<T>>;
// Gradients are sums of weights or slopes, each rounded to T, times elements of T: a small sum of large terms keeps the
// rounding errors of those terms; in short vectors (two doubles) each lane adds up 500 of 1,000 terms.
template <class T>
constexpr double gradient_tolerance = 6 * epsilon<T> + 128 * epsilon<Acc<T>>;

template <class C>
class Attention : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  Exec exec_;
};
TYPED_TEST_SUITE(Attention, AllCases);

TYPED_TEST(Attention, ForwardIsItsDefinition) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  struct Size {
    int batch, sequence, heads, kv_heads, head_dim;
    bool documents;
  };
  for (const Size s : {Size{2, 64, 2, 2, 32, false}, Size{1, 257, 3, 3, 16, false}, Size{2, 133, 4, 2, 64, true},
                       Size{1, 70, 6, 1, 8, true}, Size{1, 65, 2, 1, 128, false}, Size{1, 1, 1, 1, 8, false},
                       Size{2, 150, 2, 2, 20, true}, Size{0, 64, 2, 2, 32, false}, Size{1, 31, 2, 2, 42, false}}) {
    const AttentionProblem p = make_attention<T>(s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, s.documents);
    const AttentionResult want = plain_attention(p, p.q, p.k, p.v);
    for (const bool plain : {false, true}) {
      const BothPasses<Exec, T> got(this->exec_, p, p.q, {plain});
      expect_close(got.out, want.out, attention_tolerance<T>, "attention");
      expect_close(got.lse, want.lse, 16 * epsilon<Acc<T>>, "log-sum-exp");
      expect_close(got.largest, want.largest, 16 * epsilon<Acc<T>>, "largest score");
    }
  }
}

// The double instantiation is checked by differences; the others against it, which also sees the rounded `out`.
TYPED_TEST(Attention, BackwardIsTheGradient) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  struct Size {
    int batch, sequence, heads, kv_heads, head_dim;
    bool documents;
  };
  for (const Size s : {Size{1, 37, 2, 1, 8, true}, Size{2, 9, 2, 2, 6, false}, Size{1, 19, 3, 1, 10, false}}) {
    const AttentionProblem p = make_attention<T>(s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, s.documents);
    const Array dout = rounded<T>(random_array(p.q.rows, p.q.cols, 4));
    const Array dq = differences(p.q, [&](const Array& z) { return inner(plain_attention(p, z, p.k, p.v).out, dout); });
    const Array dk = differences(p.k, [&](const Array& z) { return inner(plain_attention(p, p.q, z, p.v).out, dout); });
    const Array dv = differences(p.v, [&](const Array& z) { return inner(plain_attention(p, p.q, p.k, z).out, dout); });
    for (const bool plain : {false, true}) {
      const BothPasses<Exec, T> got(this->exec_, p, dout, {plain});
      expect_close(got.dq, dq, attention_tolerance<T> + difference_tolerance, "dq");
      expect_close(got.dk, dk, attention_tolerance<T> + difference_tolerance, "dk");
      expect_close(got.dv, dv, attention_tolerance<T> + difference_tolerance, "dv");
    }
  }
}

TYPED_TEST(Attention, BackwardOfLargerSizesAgreesWithThePlainFormInDouble) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  struct Size {
    int batch, sequence, heads, kv_heads, head_dim;
    bool documents;
  };
  for (const Size s : {Size{1, 257, 2, 2, 32, false}, Size{2, 133, 4, 2, 64, true}, Size{1, 200, 3, 1, 8, true},
                       Size{1, 65, 2, 1, 128, false}, Size{2, 150, 2, 2, 20, true}, Size{0, 64, 2, 2, 32, false},
                       Size{1, 128, 1, 1, 42, false}}) {
    const AttentionProblem p = make_attention<T>(s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, s.documents);
    const Array dout = rounded<T>(random_array(p.q.rows, p.q.cols, 4));
    const BothPasses<Exec, T> got(this->exec_, p, dout, {});
    const BothPasses<Host, double> want(Host(), p, dout, {true});
    expect_close(got.dq, want.dq, gradient_tolerance<T>, "dq");
    expect_close(got.dk, want.dk, gradient_tolerance<T>, "dk");
    expect_close(got.dv, want.dv, gradient_tolerance<T>, "dv");
  }
}

// On a device with cuDNN its passes in bf16, from lengths of one row to many blocks. Its exponentials may be those of
// fewer bits, as weights are rounded to bf16, and so is its log-sum-exp.
TYPED_TEST(Attention, WithoutLargestScoresAgreesWithThePlainForm) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  struct Size {
    int batch, sequence, heads, kv_heads, head_dim;
  };
  for (const Size s : {Size{3, 1, 4, 4, 64}, Size{2, 17, 4, 2, 64}, Size{2, 128, 4, 4, 128}, Size{1, 1000, 2, 1, 64},
                       Size{5, 128, 8, 2, 16}}) {
    const AttentionProblem p = make_attention<T>(s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, false);
    const Array dout = rounded<T>(random_array(p.q.rows, p.q.cols, 4));
    const BothPasses<Exec, T> got(this->exec_, p, dout, {.watched = false}),
        want(this->exec_, p, dout, {.plain = true});
    expect_close(got.out, want.out, attention_tolerance<T>, "attention");
    expect_close(got.lse, want.lse, 16 * epsilon<Acc<T>> + (std::is_same_v<T, bf16> && !is_host<Exec> ? 1e-3 : 0),
                 "lse");
    expect_close(got.dv, want.dv, gradient_tolerance<T>, "dv");
    if (s.sequence == 1) continue;  // the others are zero but for rounding
    expect_close(got.dq, want.dq, gradient_tolerance<T>, "dq");
    expect_close(got.dk, want.dk, gradient_tolerance<T>, "dk");
  }
}

TYPED_TEST(Attention, NonFiniteInputsSpoilTheRowsThatSeeThem) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  AttentionProblem p = make_attention<T>(1, 100, 1, 1, 16, false);
  p.v(50, 3) = std::numeric_limits<double>::infinity();
  p.k(20, 2) = std::numeric_limits<double>::quiet_NaN();
  const BothPasses<Exec, T> got(this->exec_, p, p.q, {});
  for (std::size_t i = 20; i < 100; ++i) EXPECT_FALSE(std::isfinite(got.out(i, 3))) << i;
  EXPECT_FALSE(std::isfinite(got.dk(20, 3)));
}

TEST(AttentionOnHost, BitsDoNotDependOnTheThreadCount) {
  for (const int batch : {1, 2}) {  // three threads share two heads, or one
    const AttentionProblem p = make_attention<float>(batch, 450 / batch, 6, batch, 32, true);
    expect_same_for_any_thread_count([&](const Host& exec) {
      const BothPasses<Host, float> run(exec, p, p.q, {});
      const BothPasses<Host, bf16> short_run(exec, p, p.q, {});
      return std::vector<Array>{run.out,      run.dq,       run.dk,       run.dv,       short_run.out,
                                short_run.dq, short_run.dk, short_run.dv, short_run.lse};
    });
  }
}

TEST(AttentionNative, EachWayAgreesWithThePlainFormInDouble) {
  struct Size {
    int batch, sequence, heads, kv_heads, head_dim;
    bool documents;
  };
  for (const host::AttentionBf16* way : native_ways())
    for (const Size s : {Size{1, 300, 2, 2, 64, false}, Size{2, 133, 4, 2, 32, true}, Size{1, 129, 3, 1, 8, true},
                         Size{1, 65, 1, 1, 128, false}, Size{2, 70, 2, 1, 42, true}, Size{1, 1, 1, 1, 8, false},
                         Size{1, 600, 2, 1, 32, true}}) {
      const AttentionProblem p =
          make_attention<bf16>(s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, s.documents);
      const Array dout = rounded<bf16>(random_array(p.q.rows, p.q.cols, 4));
      const BothPasses<Host, bf16> got(Host(), p, dout, {false, way});
      const BothPasses<Host, double> want(Host(), p, dout, {true});
      expect_close(got.out, want.out, attention_tolerance<bf16>, "attention");
      expect_close(got.lse, want.lse, 16 * epsilon<float>, "log-sum-exp");
      expect_close(got.largest, want.largest, 16 * epsilon<float>, "largest score");
      expect_close(got.dq, want.dq, gradient_tolerance<bf16>, "dq");
      expect_close(got.dk, want.dk, gradient_tolerance<bf16>, "dk");
      expect_close(got.dv, want.dv, gradient_tolerance<bf16>, "dv");
    }
}

// Row r sees keys r - 1 and r alone: lse - s_r = log(1 + e^(s_(r-1) - s_r)) shows the exponential and the logarithm
// over all of their range. Both have an error below 4e-7, and lse is rounded.
TEST(AttentionNative, ExponentialAndLogarithmAreThoseOfTheLibrary) {
  constexpr int n = 512;
  for (const host::AttentionBf16* way : native_ways()) {
    AttentionProblem p = make_attention<bf16>(1, n, 1, 1, 8, false);
    p.shape.scale = 1;
    p.first_key.assign(n, 0);
    std::vector<double> score(n);
    for (int r = 0; r < n; ++r) {
      const auto row = static_cast<std::size_t>(r);
      for (std::size_t d = 0; d < 8; ++d) p.q(row, d) = p.k(row, d) = 0;
      p.q(row, 0) = 1;
      p.k(row, 0) = score[row] = (r % 2 == 0 ? 0.0 : (r - 256) / 2.0);
      p.first_key[row] = std::max(0, r - 1);
    }
    const BothPasses<Host, bf16> got(Host(), p, p.q, {false, way});
    for (std::size_t r = 1; r < n; ++r) {
      const double top = std::max(score[r], score[r - 1]), low = std::min(score[r], score[r - 1]),
                   want = top + std::log1p(std::exp(low - top));
      ASSERT_NEAR(got.lse(0, r), want, 8e-7 + 2 * epsilon<float> * std::abs(want)) << score[r - 1] << " " << score[r];
    }
  }
}

}  // namespace
}  // namespace sestina
