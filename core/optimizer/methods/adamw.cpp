#include "core/optimizer/methods/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/memory/matrix_state.hpp"
#include "core/optimizer/base/paged_bytes.hpp"
#include "kernels/blas/host_values.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {
namespace {

// What coded moments take for the rows of a tensor, in which their blocks lie: a vector is one row.
struct CodedShape {
  std::size_t rows, cols;
};
template <class Exec, class T>
CodedShape coded_shape(const OwnedTensor<Exec, T>& tensor) {
  const auto rows = static_cast<std::size_t>(tensor.rows()), cols = static_cast<std::size_t>(tensor.cols());
  return tensor.spec.is_vector() ? CodedShape{1, rows} : CodedShape{rows, cols};
}

// Ranks cut vectors between chunks (chunk_rows), which are whole blocks, and as the deck's checks allow.
template <class Exec, class T>
void require_uncut_blocks(const OwnedTensor<Exec, T>& tensor, std::int64_t block) {
  const bool by_row = tensor.spec.is_vector();
  const std::int64_t begin = by_row ? tensor.row_begin : tensor.col_begin,
                     end = by_row ? tensor.row_end : tensor.col_end;
  SESTINA_REQUIRE(begin % block == 0 && (end % block == 0 || end == (by_row ? tensor.spec.rows : tensor.spec.cols)),
                  "{}: {} {} to {} cut a block of {}", tensor.spec.name, by_row ? "numbers" : "columns", begin, end,
                  block);
}

}  // namespace

template <class Exec, class T>
AdamW<Exec, T>::AdamW(const Exec& exec, std::vector<OwnedTensor<Exec, T>> tensors, const OptimizerOptions& options,
                      double* nonfinite)
    : options_(options.adamw),
      schedule_(options.schedule),
      cautious_(options.rules.cautious),
      nonfinite_(nonfinite),
      block_(static_cast<std::size_t>(options.state_block)),
      tensors_(std::move(tensors)),
      fields_(element_fields(options.adamw.rule)),
      queue_(queue_of(exec)) {
  std::size_t numbers = 0, codes = 0, scales = 0;
  for (const auto& tensor : tensors_) {
    const bool coded = has_coded_moments(tensor.spec, options);
    const TensorRates rates = rates_of(tensor.spec, options);
    places_.push_back(coded ? Place{true, codes, scales} : Place{false, numbers, 0});
    const std::size_t n = tensor.gradient.size();
    const bool paged = n > 0 && pages_moments(tensor.spec, options, memory_of<Exec>);
    if (!paged) add_to_runs(tensor, places_.back(), rates);
    run_of_.push_back(paged ? runs_.size() : runs_.size() - 1);
    if (paged)
      add_pieces(tensor, places_.back(), rates,
                 adamw_fields(tensor.spec, tensor.rows(), tensor.cols(), options, sizeof(Acc<T>)));
    else if (!coded)
      numbers += n;
    if (!coded) continue;
    require_uncut_blocks(tensor, options.state_block);
    if (paged) continue;
    const CodedShape shape = coded_shape(tensor);
    codes += 2 * n;
    scales += 2 * shape.rows * moment_blocks(shape.cols, block_);
  }
  for (std::size_t i = 0; i < fields_.size(); ++i)
    state_[i] = Storage(Kokkos::view_alloc(exec, "sestina::" + fields_[i]), numbers);
  codes_ = decltype(codes_)(Kokkos::view_alloc(exec, "sestina::moment_codes"), codes);
  scales_ = decltype(scales_)(Kokkos::view_alloc(exec, "sestina::moment_scales"), scales);
  make_groups();
}

template <class Exec, class T>
void AdamW<Exec, T>::make_groups() {
  std::vector<std::vector<ElementRun<T>>> tables;
  std::vector<std::vector<CodedRun<T>>> coded_tables;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    Run& run = runs_[r];
    if (!run.pages.empty() || run.tensor.gradient.size() == 0) continue;
    std::size_t g = 0;
    while (g < groups_.size() && !runs_[groups_[g].runs.front()].goes_with(run)) ++g;
    if (g == groups_.size()) {
      groups_.emplace_back();
      tables.emplace_back();
      coded_tables.emplace_back();
    }
    Group& group = groups_[g];
    run.grouped = true;
    group.runs.push_back(r);
    if (run.place.coded) {
      coded_tables[g].push_back(codes_of(run));
      coded_tables[g].back().first = group.pieces;
      group.pieces += coded_tables[g].back().blocks;
    } else {
      tables[g].push_back(elements_of(run));
      tables[g].back().first = group.pieces;
      group.pieces += tables[g].back().pieces();
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].table = table_in_space<Exec>("sestina::table of runs", tables[g]);
    groups_[g].coded = table_in_space<Exec>("sestina::table of coded runs", coded_tables[g]);
  }
}

template <class Exec, class T>
ElementRun<T> AdamW<Exec, T>::elements_of(const Run& run) const {
  const OwnedTensor<Exec, T>& t = run.tensor;
  ElementRun<T> elements = element_run<Exec, T>(t.gradient, t.master, t.weight, {});
  for (std::size_t i = 0; i < fields_.size(); ++i) elements.state[i] = state_of(run, i).data();
  return elements;
}

template <class Exec, class T>
CodedRun<T> AdamW<Exec, T>::codes_of(const Run& run) const {
  return coded_run<Exec, T>(run.tensor.gradient, run.tensor.master, run.tensor.weight, coded(run));
}

// A range of a device has 32 bits for its elements.
constexpr std::size_t most_elements = std::size_t{1} << 31;

template <class Exec, class T>
void AdamW<Exec, T>::add_to_runs(const OwnedTensor<Exec, T>& tensor, const Place& place, const TensorRates& rates) {
  if (!runs_.empty() && !place.coded && !runs_.back().place.coded && runs_.back().pages.empty()) {
    Run& last = runs_.back();
    OwnedTensor<Exec, T>& t = last.tensor;
    const std::size_t m = t.gradient.size(), n = tensor.gradient.size();
    const bool adjacent = t.gradient.data() + m == tensor.gradient.data() &&
                          t.master.data() + m == tensor.master.data() &&
                          (t.weight.size() == 0) == (tensor.weight.size() == 0) &&
                          (t.weight.size() == 0 || t.weight.data() + m == tensor.weight.data());
    if (adjacent && m + n <= most_elements && last.as(tensor, rates)) {
      t.gradient = Vector<const Acc<T>, Exec>(t.gradient.data(), m + n);
      t.master = Vector<Acc<T>, Exec>(t.master.data(), m + n);
      if (t.weight.size() > 0) t.weight = Vector<T, Exec>(t.weight.data(), m + n);
      return;
    }
  }
  runs_.push_back({tensor, place, rates});
}

// Each field has one address space, whatever its pieces, so that it is one StateField.
template <class Exec, class T>
void AdamW<Exec, T>::add_pieces(const OwnedTensor<Exec, T>& tensor, const Place& place, const TensorRates& rates,
                                const std::vector<FieldSize>& fields) {
  std::vector<std::shared_ptr<std::byte>> memory;
  for (const FieldSize& field : fields) memory.push_back(block_memory(memory_of<Exec>, field.tier, bytes_of(field)));
  const std::size_t piece = element_piece(fields.front()), n = tensor.gradient.size(),
                    count = place.coded ? n : std::min(n, piece / sizeof(Acc<T>));
  for (std::size_t begin = 0; begin < n; begin += count) {
    const std::size_t elements = std::min(count, n - begin);
    Run run{tensor, place, rates};
    run.tensor.gradient = Vector<const Acc<T>, Exec>(tensor.gradient.data() + begin, elements);
    run.tensor.master = Vector<Acc<T>, Exec>(tensor.master.data() + begin, elements);
    if (tensor.weight.size() > 0) run.tensor.weight = Vector<T, Exec>(tensor.weight.data() + begin, elements);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const std::size_t at = place.coded ? 0 : begin * sizeof(Acc<T>),
                        bytes = place.coded ? bytes_of(fields[i]) : elements * sizeof(Acc<T>);
      run.pages.push_back({"/optimizer/" + tensor.spec.name + "/" + fields[i].name, FieldUse::moment, bytes,
                           std::shared_ptr<std::byte>(memory[i], memory[i].get() + at)});
    }
    runs_.push_back(std::move(run));
  }
}

template <class Exec, class T>
AdamW<Exec, T>::~AdamW() {
  if (!pager_) return;
  Kokkos::fence("optimizer");
  pager_->detach();
}

template <class Exec, class T>
void AdamW<Exec, T>::page_to(const std::shared_ptr<Pager>& pager) {
  std::size_t piece = 0;
  for (Run& run : runs_) {
    std::size_t bytes = 0;
    for (Page& page : run.pages) {
      page.pager = pager;
      pager->add(page.name, page.memory, page.bytes);
      bytes += pager->whole(page.bytes);
    }
    piece = std::max(piece, bytes);
  }
  if (piece == 0) return;
  pager->watch(queue_);
  pager->need(pieces_at_work(piece), 0);
  pager->attach();
  pager_ = pager;
}

// Returns the coded moments. In memory the second moment follows the momentum.
template <class Exec, class T>
CodedMoments<Exec> AdamW<Exec, T>::coded(const Run& run) const {
  const CodedShape shape = coded_shape(run.tensor);
  const std::size_t rows = shape.rows, cols = shape.cols, blocks = moment_blocks(cols, block_);
  const bool paged = !run.pages.empty();
  const auto codes = [&](std::size_t i) {
    auto* const at = paged ? reinterpret_cast<std::uint8_t*>(run.pages[2 * i].memory.get())
                           : codes_.data() + run.place.at + i * rows * cols;
    return Matrix<std::uint8_t, Exec>(at, rows, cols);
  };
  const auto scales = [&](std::size_t i) {
    auto* const at = paged ? reinterpret_cast<float*>(run.pages[2 * i + 1].memory.get())
                           : scales_.data() + run.place.scales_at + i * rows * blocks;
    return Matrix<float, Exec>(at, rows, blocks);
  };
  return {block_, codes(0), codes(1), scales(0), scales(1)};
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
  for (Run& run : runs_) {
    if (count_at(run, t) != 1) continue;
    const InUse pinned(run.pages);
    forget(exec, run);
  }
}

template <class Exec, class T>
void AdamW<Exec, T>::step(const Exec& exec, std::int64_t t, double factor, double gradient_scale) {
  const auto begin = [&](Run& run, const Moment& now) {
    if (now.count == 1 && (t > 1 || options_.averages())) forget(exec, run);
    ++run.calls;
  };
  for (const Group& group : groups_) {
    const Run& first = runs_[group.runs.front()];
    const Moment now = moment_of(first, t, factor, gradient_scale);
    for (const std::size_t r : group.runs) begin(runs_[r], now);
    if (first.place.coded)
      adamw<Exec, T>(exec, adamw_step(now, first), CodedRuns<Exec, T>{group.coded, block_, group.pieces});
    else
      update(exec, now, first, ElementRuns<Exec, T>{group.table, group.pieces});
  }
  for (Run& run : runs_) {
    if (run.grouped) continue;
    const InUse pinned(run.pages);
    const Moment now = moment_of(run, t, factor, gradient_scale);
    begin(run, now);
    if (run.place.coded)
      adamw<Exec, T>(exec, adamw_step(now, run), codes_of(run));
    else
      update(exec, now, run, elements_of(run));
  }
}

template <class Exec, class T>
template <class Runs>
void AdamW<Exec, T>::update(const Exec& exec, const Moment& now, const Run& first, const Runs& runs) {
  switch (options_.rule) {
    case ElementRule::adamw:
      return adamw<Exec, T>(exec, adamw_step(now, first), runs);
    case ElementRule::lion:
      return lion<Exec, T>(exec, element_step<LionStep>(now, first), runs);
    case ElementRule::ademamix:
      return ademamix<Exec, T>(exec, ademamix_step(now, first), runs);
    case ElementRule::schedule_free:
      return schedule_free<Exec, T>(exec, schedule_free_step(now, first), runs);
  }
}

template <class Exec, class T>
typename AdamW<Exec, T>::Moment AdamW<Exec, T>::moment_of(const Run& run, std::int64_t t, double factor,
                                                          double gradient_scale) const {
  return {t, count_at(run, t), factor, gradient_scale};
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
AdamWStep AdamW<Exec, T>::adamw_step(const Moment& now, const Run& run) {
  auto step = element_step<AdamWStep>(now, run);
  step.bias_correction1 = 1 - std::pow(step.beta1, static_cast<double>(now.count));
  step.bias_correction2 = bias_correction2(now, run);
  step.eps = run.tensor.spec.eps_on_corrected ? run.rates.eps : run.rates.eps / std::sqrt(step.bias_correction2);
  if (options_.momentum_decay) {
    const double mu = look_ahead(now.count), next = look_ahead(now.count + 1), product = product_to(now.count);
    step.looks_ahead = true;
    step.gradient_part = (1 - mu) / (1 - product);
    step.momentum_part = next / (1 - product * next);
  }
  return step;
}

// The warm-up follows the run, although the state of a tensor may have started over.
template <class Exec, class T>
AdEMAMixStep AdamW<Exec, T>::ademamix_step(const Moment& now, const Run& run) const {
  auto step = element_step<AdEMAMixStep>(now, run);
  step.bias_correction1 = 1 - std::pow(step.beta1, static_cast<double>(now.count));
  step.bias_correction2 = bias_correction2(now, run);
  step.eps = run.tensor.spec.eps_on_corrected ? run.rates.eps : run.rates.eps / std::sqrt(step.bias_correction2);
  step.alpha = warm_alpha(options_.alpha, now.t, options_.warmup);
  step.beta3 = warm_beta3(step.beta1, options_.beta3, now.t, options_.warmup);
  return step;
}

template <class Exec, class T>
ScheduleFreeStep AdamW<Exec, T>::schedule_free_step(const Moment& now, const Run& run) const {
  auto step = element_step<ScheduleFreeStep>(now, run);
  step.bias_correction2 = bias_correction2(now, run);
  step.eps = run.rates.eps;
  step.share = average_share(now.t, options_.warmup);
  return step;
}

template <class Exec, class T>
void AdamW<Exec, T>::start_average(const Exec& exec) {
  if (!options_.averages()) return;
  for (Run& run : runs_) {
    const InUse pinned(run.pages);
    convert<Exec, Acc<T>, Acc<T>>(exec, run.tensor.master, state_of(run, 0));
  }
}

template <class Exec, class T>
void AdamW<Exec, T>::swap_average(const Exec& exec) {
  if (!options_.averages()) return;
  for (Run& run : runs_) {
    const InUse pinned(run.pages);
    swap_values<Exec, Acc<T>>(exec, run.tensor.master, state_of(run, 0));
  }
}

template <class Exec, class T>
void AdamW<Exec, T>::forget(const Exec& exec, const Run& run) {
  if (run.place.coded) {  // whatever the codes are
    const CodedMoments<Exec> moments = coded(run);
    set_zero<Exec, float>(exec, Vector<float, Exec>(moments.m_scale.data(), moments.count()));
    return set_zero<Exec, float>(exec, Vector<float, Exec>(moments.v_scale.data(), moments.count()));
  }
  for (std::size_t i = 0; i < fields_.size(); ++i) set_zero<Exec, Acc<T>>(exec, state_of(run, i));
  if (options_.averages()) convert<Exec, Acc<T>, Acc<T>>(exec, run.tensor.master, state_of(run, 0));
}

template <class Exec, class T>
std::vector<StateField> AdamW<Exec, T>::state() const {
  std::vector<StateField> fields;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const OwnedTensor<Exec, T>& tensor = tensors_[i];
    const Run& run = runs_[run_of_[i]];
    if (places_[i].coded) {
      add_coded_state(run, fields);
      continue;
    }
    for (std::size_t k = 0; k < fields_.size(); ++k) {
      const bool paged = !run.pages.empty();
      Acc<T>* const data = paged ? state_of(run, k).data() : state_[k].data() + places_[i].at;
      fields.push_back(field_of(tensor, "/optimizer/" + tensor.spec.name + "/" + fields_[k], data));
      if (paged) fields.back().pager = run.pages[k].pager.get();
    }
  }
  return fields;
}

template <class Exec, class T>
void AdamW<Exec, T>::add_coded_state(const Run& run, std::vector<StateField>& fields) const {
  const CodedMoments<Exec> moments = coded(run);
  const auto block = static_cast<std::int64_t>(block_);
  const std::string path = "/optimizer/" + run.tensor.spec.name;
  const std::size_t first = fields.size();
  fields.push_back(field_of(run.tensor, path + "/momentum_codes", moments.m.data()));
  fields.push_back(block_field_of(run.tensor, path + "/momentum_scales", moments.m_scale.data(), block));
  fields.push_back(field_of(run.tensor, path + "/second_moment_codes", moments.v.data()));
  fields.push_back(block_field_of(run.tensor, path + "/second_moment_scales", moments.v_scale.data(), block));
  for (std::size_t k = 0; k < run.pages.size(); ++k) fields[first + k].pager = run.pages[k].pager.get();
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
