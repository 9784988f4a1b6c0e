#include "core/optimizer/methods/adamw.hpp"

#include <cmath>

#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/element_rules.hpp"

namespace sestina {

template <class Exec, class T>
AdamW<Exec, T>::AdamW(const Exec& exec, std::vector<OwnedTensor<Exec, T>> tensors, const OptimizerOptions& options,
                      double* nonfinite)
    : options_(options.adamw),
      schedule_(options.schedule),
      cautious_(options.rules.cautious),
      nonfinite_(nonfinite),
      block_(static_cast<std::size_t>(options.state_block)),
      tensors_(std::move(tensors)),
      fields_(element_fields(options.adamw.rule)) {
  std::size_t numbers = 0, codes = 0, scales = 0;
  for (const auto& tensor : tensors_) {
    const bool coded = has_coded_moments(tensor.spec, options);
    places_.push_back(coded ? Place{true, codes, scales} : Place{false, numbers, 0});
    add_to_runs(tensor, places_.back(), rates_of(tensor.spec, options));
    run_of_.push_back(runs_.size() - 1);
    const std::size_t n = tensor.gradient.size();
    if (!coded) {
      numbers += n;
      continue;
    }
    SESTINA_REQUIRE(tensor.col_begin % options.state_block == 0 &&
                        (tensor.col_end % options.state_block == 0 || tensor.col_end == tensor.spec.cols),
                    "{}: columns {} to {} cut a block of {}", tensor.spec.name, tensor.col_begin, tensor.col_end,
                    options.state_block);
    codes += 2 * n;
    scales +=
        2 * static_cast<std::size_t>(tensor.rows()) * moment_blocks(static_cast<std::size_t>(tensor.cols()), block_);
  }
  for (std::size_t i = 0; i < fields_.size(); ++i)
    state_[i] = Storage(Kokkos::view_alloc(exec, "sestina::" + fields_[i]), numbers);
  codes_ = decltype(codes_)(Kokkos::view_alloc(exec, "sestina::moment_codes"), codes);
  scales_ = decltype(scales_)(Kokkos::view_alloc(exec, "sestina::moment_scales"), scales);
}

template <class Exec, class T>
void AdamW<Exec, T>::add_to_runs(const OwnedTensor<Exec, T>& tensor, const Place& place, const TensorRates& rates) {
  if (!runs_.empty() && !place.coded && !runs_.back().place.coded) {
    Run& last = runs_.back();
    OwnedTensor<Exec, T>& t = last.tensor;
    const std::size_t m = t.gradient.size(), n = tensor.gradient.size();
    const bool adjacent = t.gradient.data() + m == tensor.gradient.data() &&
                          t.master.data() + m == tensor.master.data() &&
                          (t.weight.size() == 0) == (tensor.weight.size() == 0) &&
                          (t.weight.size() == 0 || t.weight.data() + m == tensor.weight.data());
    if (adjacent && last.as(tensor, rates)) {
      t.gradient = Vector<const Acc<T>, Exec>(t.gradient.data(), m + n);
      t.master = Vector<Acc<T>, Exec>(t.master.data(), m + n);
      if (t.weight.size() > 0) t.weight = Vector<T, Exec>(t.weight.data(), m + n);
      return;
    }
  }
  runs_.push_back({tensor, place, rates});
}

// Returns the coded moments: the momentum, followed by the second moment.
template <class Exec, class T>
CodedMoments<Exec> AdamW<Exec, T>::coded(const OwnedTensor<Exec, T>& tensor, const Place& place) const {
  const auto rows = static_cast<std::size_t>(tensor.rows()), cols = static_cast<std::size_t>(tensor.cols()),
             blocks = moment_blocks(cols, block_);
  std::uint8_t* const codes = codes_.data() + place.at;
  float* const scales = scales_.data() + place.scales_at;
  return {block_, Matrix<std::uint8_t, Exec>(codes, rows, cols),
          Matrix<std::uint8_t, Exec>(codes + rows * cols, rows, cols), Matrix<float, Exec>(scales, rows, blocks),
          Matrix<float, Exec>(scales + rows * blocks, rows, blocks)};
}

// mu_t = beta1 (1 - 0.96^(t psi) / 2): Dozat 2016.
template <class Exec, class T>
double AdamW<Exec, T>::look_ahead(std::int64_t t) const {
  return options_.beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(t) * *options_.momentum_decay));
}

// Returns the product in the order of t, continued from where it was left: a function of t alone.
template <class Exec, class T>
double AdamW<Exec, T>::product_to(std::int64_t t) {
  if (t < product_of_) product_of_ = 0, product_ = 1;
  while (product_of_ < t) product_ *= look_ahead(++product_of_);
  return product_;
}

template <class Exec, class T>
void AdamW<Exec, T>::withhold(const Exec& exec, std::int64_t t) {
  for (const Run& run : runs_)
    if (updates_of_state(run.tensor.spec, t) == 1) forget(exec, run);
}

template <class Exec, class T>
void AdamW<Exec, T>::step(const Exec& exec, std::int64_t t, double factor, double gradient_scale) {
  for (Run& run : runs_) {
    const Moment now{t, updates_of_state(run.tensor.spec, t), factor, gradient_scale};
    if (now.count == 1 && (t > 1 || options_.averages())) forget(exec, run);
    switch (options_.rule) {
      case ElementRule::adamw:
        step_adamw(exec, now, run);
        break;
      case ElementRule::lion:
        step_lion(exec, now, run);
        break;
      case ElementRule::ademamix:
        step_ademamix(exec, now, run);
        break;
      case ElementRule::schedule_free:
        step_schedule_free(exec, now, run);
        break;
    }
    ++run.calls;
  }
}

template <class Exec, class T>
template <class Step>
Step AdamW<Exec, T>::element_step(const Moment& now, const Run& run) const {
  Step step;
  step.lr = now.factor * run.rates.lr;
  step.weight_decay = run.rates.weight_decay * schedule_.decay_factor(now.t, now.factor);
  step.gradient_scale = now.gradient_scale;
  step.cautious = cautious_;
  step.nonfinite = nonfinite_;
  step.beta1 = run.rates.beta1;
  step.beta2 = run.rates.beta2;
  return step;
}

template <class Exec, class T>
double AdamW<Exec, T>::bias_correction2(const Moment& now, const Run& run) const {
  return 1 - std::pow(run.rates.beta2, static_cast<double>(now.count));
}

template <class Exec, class T>
void AdamW<Exec, T>::step_adamw(const Exec& exec, const Moment& now, const Run& run) {
  const OwnedTensor<Exec, T>& tensor = run.tensor;
  auto step = element_step<AdamWStep>(now, run);
  step.bias_correction1 = 1 - std::pow(step.beta1, static_cast<double>(now.count));
  step.bias_correction2 = bias_correction2(now, run);
  step.eps = tensor.spec.eps_on_corrected ? run.rates.eps : run.rates.eps / std::sqrt(step.bias_correction2);
  if (options_.momentum_decay) {
    const double mu = look_ahead(now.count), next = look_ahead(now.count + 1), product = product_to(now.count);
    step.looks_ahead = true;
    step.gradient_part = (1 - mu) / (1 - product);
    step.momentum_part = next / (1 - product * next);
  }
  if (run.place.coded)
    return adamw<Exec, T>(exec, step, tensor.gradient, tensor.master, coded(tensor, run.place), tensor.weight);
  adamw<Exec, T>(exec, step, tensor.gradient, tensor.master, state_of(run, 0), state_of(run, 1), tensor.weight);
}

template <class Exec, class T>
void AdamW<Exec, T>::step_lion(const Exec& exec, const Moment& now, const Run& run) {
  const OwnedTensor<Exec, T>& tensor = run.tensor;
  lion<Exec, T>(exec, element_step<LionStep>(now, run), tensor.gradient, tensor.master, state_of(run, 0),
                tensor.weight);
}

// The warm-up follows the run, although the state of a tensor may have started over.
template <class Exec, class T>
void AdamW<Exec, T>::step_ademamix(const Exec& exec, const Moment& now, const Run& run) {
  const OwnedTensor<Exec, T>& tensor = run.tensor;
  auto step = element_step<AdEMAMixStep>(now, run);
  step.bias_correction1 = 1 - std::pow(step.beta1, static_cast<double>(now.count));
  step.bias_correction2 = bias_correction2(now, run);
  step.eps = tensor.spec.eps_on_corrected ? run.rates.eps : run.rates.eps / std::sqrt(step.bias_correction2);
  step.alpha = warm_alpha(options_.alpha, now.t, options_.warmup);
  step.beta3 = warm_beta3(step.beta1, options_.beta3, now.t, options_.warmup);
  ademamix<Exec, T>(exec, step, tensor.gradient, tensor.master, state_of(run, 0), state_of(run, 1), state_of(run, 2),
                    tensor.weight);
}

template <class Exec, class T>
void AdamW<Exec, T>::step_schedule_free(const Exec& exec, const Moment& now, const Run& run) {
  const OwnedTensor<Exec, T>& tensor = run.tensor;
  auto step = element_step<ScheduleFreeStep>(now, run);
  step.bias_correction2 = bias_correction2(now, run);
  step.eps = run.rates.eps;
  step.share = average_share(now.t, options_.warmup);
  schedule_free<Exec, T>(exec, step, tensor.gradient, tensor.master, state_of(run, 0), state_of(run, 1), tensor.weight);
}

template <class Exec, class T>
void AdamW<Exec, T>::start_average(const Exec& exec) {
  if (!options_.averages()) return;
  for (const Run& run : runs_) convert<Exec, Acc<T>, Acc<T>>(exec, run.tensor.master, state_of(run, 0));
}

template <class Exec, class T>
void AdamW<Exec, T>::swap_average(const Exec& exec) {
  if (!options_.averages()) return;
  for (const Run& run : runs_) swap_values<Exec, Acc<T>>(exec, run.tensor.master, state_of(run, 0));
}

template <class Exec, class T>
void AdamW<Exec, T>::forget(const Exec& exec, const Run& run) {
  if (run.place.coded) {  // whatever the codes are
    const CodedMoments<Exec> moments = coded(run.tensor, run.place);
    return set_zero<Exec, float>(exec, Vector<float, Exec>(moments.m_scale.data(), 2 * moments.count()));
  }
  for (std::size_t i = 0; i < fields_.size(); ++i) set_zero<Exec, Acc<T>>(exec, state_of(run, i));
  if (options_.averages()) convert<Exec, Acc<T>, Acc<T>>(exec, run.tensor.master, state_of(run, 0));
}

template <class Exec, class T>
std::vector<StateField> AdamW<Exec, T>::state() const {
  std::vector<StateField> fields;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const OwnedTensor<Exec, T>& tensor = tensors_[i];
    const Place& place = places_[i];
    const std::string path = "/optimizer/" + tensor.spec.name;
    if (!place.coded) {
      for (std::size_t k = 0; k < fields_.size(); ++k)
        fields.push_back(field_of(tensor, path + "/" + fields_[k], state_[k].data() + place.at));
      continue;
    }
    const CodedMoments<Exec> moments = coded(tensor, place);
    const auto block = static_cast<std::int64_t>(block_);
    fields.push_back(field_of(tensor, path + "/momentum_codes", moments.m.data()));
    fields.push_back(block_field_of(tensor, path + "/momentum_scales", moments.m_scale.data(), block));
    fields.push_back(field_of(tensor, path + "/second_moment_codes", moments.v.data()));
    fields.push_back(block_field_of(tensor, path + "/second_moment_scales", moments.v_scale.data(), block));
  }
  return fields;
}

template <class Exec, class T>
std::vector<UpdateRecord> AdamW<Exec, T>::records() const {
  std::vector<UpdateRecord> records;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    records.push_back({tensors_[i].spec.name, name(options_.rule),
                       static_cast<std::int64_t>(tensors_[i].gradient.size()), runs_[run_of_[i]].calls,
                       tensors_[i].saved});
  return records;
}

#define SESTINA_ADAMW(Exec, T) template class AdamW<Exec, T>;
SESTINA_INSTANTIATE(SESTINA_ADAMW)
SESTINA_ADAMW(Serial, float)  // replay of golden files

}  // namespace sestina
