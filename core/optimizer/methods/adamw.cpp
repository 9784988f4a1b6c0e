#include "core/optimizer/methods/adamw.hpp"

#include <cmath>

#include "kernels/blas/elementwise.hpp"
#include "kernels/optimizer/adamw.hpp"

namespace sestina {

template <class Exec, class T>
AdamW<Exec, T>::AdamW(const Exec& exec, std::vector<OwnedTensor<Exec, T>> tensors, const OptimizerOptions& options,
                      double* nonfinite)
    : options_(options.adamw), nonfinite_(nonfinite), tensors_(std::move(tensors)) {
  std::size_t total = 0;
  for (const auto& tensor : tensors_) {
    const TensorRates rates = rates_of(tensor.spec, options);
    const std::size_t n = tensor.gradient.size();
    if (!runs_.empty()) {
      Run& last = runs_.back();
      OwnedTensor<Exec, T>& t = last.tensor;
      const std::size_t m = t.gradient.size();
      const bool adjacent = t.gradient.data() + m == tensor.gradient.data() &&
                            t.master.data() + m == tensor.master.data() &&
                            (t.weight.size() == 0) == (tensor.weight.size() == 0) &&
                            (t.weight.size() == 0 || t.weight.data() + m == tensor.weight.data());
      if (adjacent && last.as(tensor, rates)) {
        t.gradient = {t.gradient.data(), m + n};
        t.master = {t.master.data(), m + n};
        if (t.weight.size() > 0) t.weight = {t.weight.data(), m + n};
        total += n;
        continue;
      }
    }
    runs_.push_back({tensor, total, rates});
    total += n;
  }
  momentum_ = Storage(Kokkos::view_alloc(exec, "sestina::momentum"), total);
  second_moment_ = Storage(Kokkos::view_alloc(exec, "sestina::second_moment"), total);
}

// mu_t = beta1 (1 - 0.96^(t psi) / 2): Dozat 2016.
template <class Exec, class T>
double AdamW<Exec, T>::look_ahead(std::int64_t t) const {
  return options_.beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(t) * *options_.momentum_decay));
}

// In the order of t, from the start where it was left: a function of t alone.
template <class Exec, class T>
double AdamW<Exec, T>::product_to(std::int64_t t) {
  if (t < product_of_) product_of_ = 0, product_ = 1;
  while (product_of_ < t) product_ *= look_ahead(++product_of_);
  return product_;
}

template <class Exec, class T>
void AdamW<Exec, T>::step(const Exec& exec, std::int64_t t, double factor, double gradient_scale) {
  AdamWStep step;
  step.beta1 = options_.beta1;
  step.beta2 = options_.beta2;
  step.gradient_scale = gradient_scale;
  step.nonfinite = nonfinite_;
  for (const Run& run : runs_) {
    const std::int64_t every = run.tensor.spec.reset_every, count = every > 0 ? (t - 1) % every + 1 : t;
    step.bias_correction1 = 1 - std::pow(options_.beta1, static_cast<double>(count));
    step.bias_correction2 = 1 - std::pow(options_.beta2, static_cast<double>(count));
    step.eps = run.tensor.spec.eps_on_corrected ? options_.eps : options_.eps / std::sqrt(step.bias_correction2);
    if (options_.momentum_decay) {
      const double mu = look_ahead(count), next = look_ahead(count + 1), product = product_to(count);
      step.looks_ahead = true;
      step.gradient_part = (1 - mu) / (1 - product);
      step.momentum_part = next / (1 - product * next);
    }
    step.lr = factor * run.rates.lr;
    step.weight_decay = run.rates.weight_decay;
    const std::size_t n = run.tensor.gradient.size();
    if (count == 1 && t > 1) {
      set_zero<Exec, Acc<T>>(exec, {momentum_.data() + run.offset, n});
      set_zero<Exec, Acc<T>>(exec, {second_moment_.data() + run.offset, n});
    }
    adamw<Exec, T>(exec, step, run.tensor.gradient, run.tensor.master, {momentum_.data() + run.offset, n},
                   {second_moment_.data() + run.offset, n}, run.tensor.weight);
  }
}

template <class Exec, class T>
std::vector<StateField> AdamW<Exec, T>::state() const {
  std::vector<StateField> fields;
  std::size_t offset = 0;
  for (const auto& tensor : tensors_) {
    const std::string path = "/optimizer/" + tensor.spec.name;
    fields.push_back(field_of(tensor, path + "/momentum", momentum_.data() + offset));
    fields.push_back(field_of(tensor, path + "/second_moment", second_moment_.data() + offset));
    offset += tensor.gradient.size();
  }
  return fields;
}

#define SESTINA_ADAMW(Exec, T) template class AdamW<Exec, T>;
SESTINA_INSTANTIATE(SESTINA_ADAMW)
SESTINA_ADAMW(Serial, float)  // replay of golden files

}  // namespace sestina
