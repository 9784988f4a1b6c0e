// Norms of the residual stream and of heads, both ways, compared with their formulas.
#include <fmt/format.h>

#include "core/check/checker.hpp"
#include "kernels/model/norm.hpp"

namespace sestina {
namespace {

// A normed row is x^ = (x - mean) inverse, y = x^ weight + bias. RMSNorm has mean 0 and no bias.
struct PlainNorm {
  bool centred = false;
  double eps = 0;
  std::size_t n = 0, d = 0;
  std::vector<double> x, weight, bias, dy, residual;         // (n, d), (d)
  std::vector<double> y, mean, inverse, dx, dweight, dbias;  // results

  void forward() {
    y.resize(n * d);
    mean.assign(n, 0);
    inverse.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const double* row = x.data() + i * d;
      double sum = 0, squares = 0;
      for (std::size_t j = 0; j < d && centred; ++j) sum += row[j];
      mean[i] = sum / static_cast<double>(d);
      for (std::size_t j = 0; j < d; ++j) squares += (row[j] - mean[i]) * (row[j] - mean[i]);
      inverse[i] = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
      for (std::size_t j = 0; j < d; ++j)
        y[i * d + j] = (row[j] - mean[i]) * inverse[i] * weight[j] + (centred ? bias[j] : 0);
    }
  }

  // dx = inverse (g - mean(g) - x^ mean(g x^)) + residual with g = dy weight; mean(g) is left out of RMSNorm. dweight
  // and dbias begin with numbers and grow by the sums of dy x^ and dy over rows.
  void backward() {
    dx.resize(n * d);
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0, along = 0;
      const auto normed = [&](std::size_t j) { return (x[i * d + j] - mean[i]) * inverse[i]; };
      for (std::size_t j = 0; j < d; ++j) {
        const double g = dy[i * d + j] * weight[j];
        sum += centred ? g : 0;
        along += g * normed(j);
        dweight[j] += dy[i * d + j] * normed(j);
        if (centred) dbias[j] += dy[i * d + j];
      }
      for (std::size_t j = 0; j < d; ++j)
        dx[i * d + j] = inverse[i] * (dy[i * d + j] * weight[j] - sum / static_cast<double>(d) -
                                      normed(j) * along / static_cast<double>(d)) +
                        residual[i * d + j];
    }
  }
};

template <class Field>
std::vector<double> starts(const Field& field) {
  std::vector<double> values(field.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = field.start(i);
  return values;
}

// One norm of rows (n, d): the buffers of both its kernels. `bound` is of a row: its sums of d numbers are relative to
// their size, results are rounded once as T.
template <class Exec, class T>
class NormCheck {
 public:
  using A = Acc<T>;
  NormCheck(const CheckContext<Exec>& context, std::size_t n, std::size_t d)
      : checker_(context.checker),
        eps_(context.model().rms_norm_eps),
        x(checker_.template numbers<T>(n, d)),
        branch(checker_.template numbers<T>(n, d)),
        dy(checker_.template numbers<T>(n, d)),
        residual(checker_.template numbers<T>(n, d)),
        sum(checker_.template blank<T>(n, d)),
        y(checker_.template blank<T>(n, d)),
        dx(checker_.template blank<T>(n, d)),
        weight(checker_.template numbers<A>(1, d)),
        bias(checker_.template numbers<A>(1, d)),
        dweight(checker_.template numbers<A>(1, d)),
        dbias(checker_.template numbers<A>(1, d)),
        mean(checker_.template blank<A>(1, n)),
        inverse(checker_.template blank<A>(1, n)),
        workspace_(bytes_of<NormScratch<Exec, T>, Exec>(n, d)) {
    plain_.eps = eps_;
    plain_.n = n;
    plain_.d = d;
    // The norm reads the sum as it was stored.
    sums_.resize(n * d);
    for (std::size_t i = 0; i < sums_.size(); ++i)
      sums_[i] = static_cast<double>(T(static_cast<A>(x.start(i)) + static_cast<A>(branch.start(i))));
    plain_.x = sums_;
    plain_.weight = starts(weight);
    plain_.bias = starts(bias);
    plain_.dy = starts(dy);
    plain_.residual = starts(residual);
    plain_.dweight = starts(dweight);
    plain_.dbias = starts(dbias);
  }

  void run(bool centred) {
    plain_.centred = centred;
    plain_.forward();
    plain_.backward();
    const Exec& exec = checker_.exec();
    const std::string name = centred ? "LayerNorm" : "RMSNorm", shape = fmt::format("{} x {}", plain_.n, plain_.d);
    const double row = 2 * spacing<T> + 32 * spacing<A>,
                 column = 8 * std::sqrt(static_cast<double>(plain_.n)) * spacing<A> + 32 * spacing<A>;
    const double bytes = 4.0 * static_cast<double>(plain_.n * plain_.d) * sizeof(T);
    std::vector<CheckedOutput> outputs = {expected("sum", sum, 0, sums_), expected("y", y, row, plain_.y),
                                          expected("inverse", inverse, 32 * spacing<A>, plain_.inverse)};
    if (centred)
      checker_.check({"residual, LayerNorm: forward", shape, 0, bytes}, std::move(outputs), [&] {
        add_layer_norm<Exec, T>(exec, x.matrix(), branch.matrix(), weight.vector(), bias.vector(), eps_, sum.matrix(),
                                y.matrix(), mean.vector(), inverse.vector());
      });
    else
      checker_.check({"residual, RMSNorm: forward", shape, 0, bytes}, std::move(outputs), [&] {
        add_rms_norm<Exec, T>(exec, x.matrix(), branch.matrix(), weight.vector(), eps_, sum.matrix(), y.matrix(),
                              inverse.vector());
      });
    outputs = {expected("dx", dx, row, plain_.dx), expected("dweight", dweight, column, plain_.dweight)};
    if (centred) outputs.push_back(expected("dbias", dbias, column, plain_.dbias));
    checker_.check({name + ": backward", shape, 0, bytes}, std::move(outputs), [&] {
      if (centred)
        layer_norm_backward<Exec, T>(exec, dy.matrix(), sum.matrix(), weight.vector(), mean.vector(), inverse.vector(),
                                     residual.matrix(), dx.matrix(), dweight.vector(), dbias.vector(), workspace_);
      else
        rms_norm_backward<Exec, T>(exec, dy.matrix(), sum.matrix(), weight.vector(), inverse.vector(),
                                   residual.matrix(), dx.matrix(), dweight.vector(), workspace_);
    });
  }

 private:
  Checker<Exec>& checker_;
  double eps_;
  CheckField<Exec, T> x, branch, dy, residual, sum, y, dx;
  CheckField<Exec, A> weight, bias, dweight, dbias, mean, inverse;
  Workspace<Exec> workspace_;
  std::vector<double> sums_;
  PlainNorm plain_;
};

}  // namespace

template <class Exec, class T>
void check_norms(const CheckContext<Exec>& context) {
  const ModelConfig& model = context.model();
  NormCheck<Exec, T>(context, context.rows(), extent(model.hidden_size)).run(model.layer_norms());
}

#define SESTINA_CHECK_NORMS(Exec, T) template void check_norms<Exec, T>(const CheckContext<Exec>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_NORMS)

}  // namespace sestina
