#include "core/model/linear_form.hpp"

#include "kernels/model/quantise.hpp"

namespace sestina {

namespace {

// The one form that fits in here: trained weights in 8 bits, decoded before each product, y = x W^T with W as its codes
// have it. Gradients are those of W.
template <class Exec, class T>
class Int8Linear final : public LinearForm<Exec, T> {
 public:
  using A = Acc<T>;

  void forward(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> x, Matrix<T, Exec>,
               Matrix<T, Exec> y) const override {
    auto frame = c.workspace.frame();
    c.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, x, decoded(c, w), 0, y);
  }
  void backward_input(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> dy, bool add, Matrix<T, Exec>,
                      Matrix<T, Exec> dx) const override {
    auto frame = c.workspace.frame();
    c.gemm.template operator()<T, T>(Op::none, Op::none, 1, dy, decoded(c, w), add ? 1 : 0, dx);
  }
  void backward_weight(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                       Matrix<const T, Exec>, Matrix<const T, Exec>, bool accumulate,
                       const FormedWeight& gradient) const override {
    const Matrix<A, Exec> dw(static_cast<A*>(gradient.part[0]), static_cast<std::size_t>(w.rows),
                             static_cast<std::size_t>(w.cols));
    c.gemm.template operator()<T, A>(Op::transpose, Op::none, 1, dy, x, accumulate ? 1 : 0, dw);
  }
  void assign(Context<Exec>& c, const FormedWeight& w, std::uint64_t, Matrix<const A, Exec> dense) const override {
    encode_rows<Exec, A>(c.exec, dense, rows_of(c, w));
  }
  void effective(Context<Exec>& c, const FormedWeight& w, Matrix<A, Exec> dense) const override {
    decode_rows<Exec, A>(c.exec, rows_of(c, w), dense);
  }
  void merge(Context<Exec>&, const FormedWeight&, std::uint64_t, std::int64_t) const override {}

 private:
  static CodedRows rows_of(const Context<Exec>& c, const FormedWeight& w) {
    return {static_cast<std::uint8_t*>(w.part[0]), static_cast<std::size_t>(w.rows), static_cast<std::size_t>(w.cols),
            static_cast<std::size_t>(c.config().linear.group_size)};
  }
  static Matrix<T, Exec> decoded(Context<Exec>& c, const FormedWeight& w) {
    const CodedRows rows = rows_of(c, w);
    const Matrix<T, Exec> weight = c.workspace.template take<T>(rows.rows, rows.cols);
    decode_rows<Exec, T>(c.exec, rows, weight);
    return weight;
  }
};

}  // namespace

// Returns the mathematics of a form: the second half of the table in core/layout/weight_form.cpp.
template <class Exec, class T>
const LinearForm<Exec, T>& linear_form(const LinearOptions& options) {
  if (options.form == "poet-x") return poet_x_linear<Exec, T>();
  if (options.form == "lora") return lora_linear<Exec, T>();
  if (options.form == "int8") {
    static const Int8Linear<Exec, T> int8;
    return int8;
  }
  fail(ExitCode::internal, "no form of weights \"{}\"", options.form);
}

#define SESTINA_LINEAR_FORM(Exec, T) template const LinearForm<Exec, T>& linear_form<Exec, T>(const LinearOptions&);
SESTINA_INSTANTIATE(SESTINA_LINEAR_FORM)

}  // namespace sestina
