// Low-rank adaptation: y = x W0^T + s (x A^T) B^T with s = alpha / rank, W0 (out, in) frozen, A (rank, in), B (out,
// rank).
#include "core/layout/lora_form.hpp"
#include "core/model/linear_form.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
class LoraLinear final : public LinearForm<Exec, T> {
 public:
  using A = Acc<T>;

  void forward(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> x, Matrix<T, Exec>,
               Matrix<T, Exec> y) const override {
    auto frame = c.workspace.frame();
    const Views v = views(c, w);
    const Matrix<T, Exec> thin = c.workspace.template take<T>(x.extent(0), v.rank);
    c.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, x, v.base, 0, y);
    c.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, x, v.down, 0, thin);
    c.gemm.template operator()<T, T>(Op::none, Op::transpose, v.scale, thin, v.up, 1, y);
  }
  void backward_input(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> dy, bool add,
                      Matrix<T, Exec> passed, Matrix<T, Exec> dx) const override {
    const Views v = views(c, w);
    c.gemm.template operator()<T, T>(Op::none, Op::none, v.scale, dy, v.up, 0, passed);
    c.gemm.template operator()<T, T>(Op::none, Op::none, 1, dy, v.base, add ? 1 : 0, dx);
    c.gemm.template operator()<T, T>(Op::none, Op::none, 1, passed, v.down, 1, dx);
  }
  void backward_weight(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                       Matrix<const T, Exec>, Matrix<const T, Exec> passed, bool accumulate,
                       const FormedWeight& gradient) const override {
    auto frame = c.workspace.frame();
    const Views v = views(c, w);
    const A beta = accumulate ? 1 : 0;
    const Matrix<T, Exec> thin = c.workspace.template take<T>(x.extent(0), v.rank);
    const Matrix<A, Exec> d_down(static_cast<A*>(gradient.part[lora_down]), v.down.extent(0), v.down.extent(1));
    const Matrix<A, Exec> d_up(static_cast<A*>(gradient.part[lora_up]), v.up.extent(0), v.up.extent(1));
    c.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, x, v.down, 0, thin);
    c.gemm.template operator()<T, A>(Op::transpose, Op::none, v.scale, dy, thin, beta, d_up);
    c.gemm.template operator()<T, A>(Op::transpose, Op::none, 1, passed, x, beta, d_down);
  }
  void assign(Context<Exec>& c, const FormedWeight& w, std::uint64_t, Matrix<const A, Exec> dense) const override {
    const Matrix<T, Exec> base = views(c, w).base;
    convert<Exec, A, T>(c.exec, Vector<const A, Exec>(dense.data(), dense.size()),
                        Vector<T, Exec>(base.data(), base.size()));
  }
  void effective(Context<Exec>& c, const FormedWeight& w, Matrix<A, Exec> dense) const override {
    auto frame = c.workspace.frame();
    const Views v = views(c, w);
    convert<Exec, T, A>(c.exec, Vector<const T, Exec>(v.base.data(), v.base.size()),
                        Vector<A, Exec>(dense.data(), dense.size()));
    c.gemm.template operator()<T, A>(Op::none, Op::none, v.scale, v.up, v.down, 1, dense);
  }
  void merge(Context<Exec>&, const FormedWeight&, std::uint64_t, std::int64_t) const override {}

 private:
  struct Views {
    Matrix<T, Exec> base, down, up;
    std::size_t rank;
    A scale;
  };
  static Views views(const Context<Exec>& c, const FormedWeight& w) {
    const LinearOptions& options = c.config().linear;
    const auto out = static_cast<std::size_t>(w.rows), in = static_cast<std::size_t>(w.cols),
               rank = static_cast<std::size_t>(options.rank);
    return {Matrix<T, Exec>(static_cast<T*>(w.part[lora_base]), out, in),
            Matrix<T, Exec>(static_cast<T*>(w.part[lora_down]), rank, in),
            Matrix<T, Exec>(static_cast<T*>(w.part[lora_up]), out, rank), rank,
            static_cast<A>(options.alpha / static_cast<double>(options.rank))};
  }
};

}  // namespace

template <class Exec, class T>
const LinearForm<Exec, T>& lora_linear() {
  static const LoraLinear<Exec, T> form;
  return form;
}

#define SESTINA_LORA_LINEAR(Exec, T) template const LinearForm<Exec, T>& lora_linear<Exec, T>();
SESTINA_INSTANTIATE(SESTINA_LORA_LINEAR)

}  // namespace sestina
