// Micro-batches computed again, and digests and flips of what the stages of this rank hold, in one execution space.
#pragma once
#include <memory>
#include <vector>

#include "parallel/stage/stage_run.hpp"

namespace sestina {

template <class Exec, class T>
class StageAudit final : public BitAudit {
 public:
  // The stages of this rank in order; they must outlive it.
  StageAudit(const Exec&, std::vector<StageRun<Exec, T>*> runs);
  ~StageAudit() override;

  void begin_passes(std::optional<int> digests, const std::optional<BitFlip>& flip) override;
  void compute_again(const BatchView&, double gradient_scale) override;
  std::vector<PassDigest> replay(const BatchView&, double gradient_scale) override;
  std::string flipped(const BitFlip&) const override;
  std::span<const std::uint64_t> gradients() override;
  const std::vector<std::string>& tensors() const override { return names_; }
  std::vector<StateField> weight_fields() const override;
  std::uint64_t digest(const StateField&) override;
  void flip(const StateField&, const BitFlip&) override;

 private:
  std::vector<std::size_t> tensors_of(const BitFlip&) const;
  std::pair<std::size_t, std::uint64_t> place_of(const BitFlip&) const;

  Exec exec_;
  std::vector<StageRun<Exec, T>*> runs_;
  std::vector<std::unique_ptr<GradientDigests<Exec, T>>> digests_;  // by stage
  std::vector<std::string> names_;
  std::vector<std::uint64_t> all_;
  Kokkos::View<std::uint64_t*, typename Exec::memory_space> one_;
};

}  // namespace sestina
