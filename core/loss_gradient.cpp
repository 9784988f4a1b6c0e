#include "core/loss_gradient.hpp"

#include <algorithm>

namespace sestina {

LossGradient::LossGradient(const Host& exec, const ModelConfig& config, int micro_batch, int sequence,
                           const std::vector<FixedBatch>& batches)
    : exec_(exec),
      model_(exec_, config, all_layers(config), micro_batch, sequence, false, false),
      arena_(model_.specs(), true),
      weights_(weights_of<Host, double>(config, all_layers(config), arena_)),
      gradients_(gradients_of<Host, double>(config, all_layers(config), arena_)),
      slot_(model_.make_slot()) {
  for (const TensorSpec& spec : specs()) size_ += static_cast<std::size_t>(spec.elements());
  std::int64_t counted = 0;
  for (const FixedBatch& batch : batches) {
    batches_.push_back(std::make_unique<TokenSlot<Host>>(micro_batch, sequence, 1));
    batches_.back()->load(exec_, {batch.tokens.data(), batch.first_key.empty() ? nullptr : batch.first_key.data()});
    const Vector<const std::int32_t, Host> targets = batches_.back()->targets();
    counted += std::count_if(targets.data(), targets.data() + targets.size(), [](std::int32_t t) { return t >= 0; });
  }
  SESTINA_REQUIRE(counted > 0, "{} batches without a token to predict", batches.size());
  scale_ = 1 / static_cast<double>(counted);
}

double LossGradient::operator()(const std::vector<double>& at, std::vector<double>& gradient) {
  SESTINA_REQUIRE(at.size() == size_, "{} numbers for {} weights", at.size(), size_);
  const double* from = at.data();
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    const Vector<double, Host> master = arena_.master(i);
    std::copy_n(from, master.size(), master.data());
    from += master.size();
  }
  double loss = 0;
  for (std::size_t b = 0; b < batches_.size(); ++b) {
    const TokenSlot<Host>& batch = *batches_[b];
    model_.forward(weights_, slot_, batch.inputs(), batch.first_key(), hooks_);
    model_.loss_and_backward(weights_, slot_, batch.targets(), scale_, b > 0, gradients_, hooks_);
    loss += model_.loss_sum(slot_);  // fences
  }
  gradient.resize(size_);
  double* to = gradient.data();
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    const Vector<double, Host> part = arena_.gradient(i);
    to = std::copy_n(part.data(), part.size(), to);
  }
  return loss * scale_;
}

}  // namespace sestina
