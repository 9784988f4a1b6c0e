// The trainer's audits: passes that are run again where an audit finds that they were wrong for once, and the end of
// the run where they stay wrong.
#include <spdlog/spdlog.h>

#include "app/train/trainer.hpp"

namespace sestina {
namespace {

constexpr int max_wrong_in_a_row = 3;  // audits of one update that end differently: more is no accident

}  // namespace

void Trainer::start_audits(const StageMaker& stages) {
  if (options_.run.audit_every == 0 && !flips_.planned()) return;
  bits_ = stages.make_audit(executor_.runs());
  if (options_.run.audit_every > 0)
    audit_ = std::make_unique<Audit>(executor_, *bits_, flips_, training_, options_, runtime_.world());
}

Passes Trainer::audited_passes() {
  const std::int64_t t = step_ + 1;
  const bool audits = audit_ && audit_->is_due(t);
  if (bits_) flips_.before_passes(t, executor_, *bits_);
  for (int wrong = 0;; ++wrong) {
    if (audits) audit_->begin(t, sample_, [this](const Error& error) { batches_.lose(error); });
    const std::optional<int> audited = audits ? std::optional(audit_->audited_micro(t)) : std::nullopt;
    if (bits_) {
      const std::optional<BitFlip> flip = flips_.in_pass(t, false, audited);
      if (flip && wrong == 0 && t == setup_.fault->first)
        spdlog::warn("SESTINA_FAULT flips bits of the {} in update {}", bits_->flipped(*flip), t);
      bits_->begin_passes(audited, flip);
    }
    const bool together = options_.parallel.overlap_updates;  // no step is dropped once matrices have been updated
    const Passes passes = run_passes([&] { return (together || !several()) && stop_voted(); });
    if (!audits || passes.dropped || is_right(wrong)) return passes;
    batches_.start_at(sample_);
  }
}

Passes Trainer::run_passes_again() {
  executor_.withdraw();
  if (bits_) bits_->begin_passes(std::nullopt, flips_.in_pass(step_ + 1, true));
  return run_passes();
}

bool Trainer::is_right(int wrong) {
  const Audit::Finding finding = audit_->compare(batches_.lost().has_value());
  if (finding.kind == AuditVerdict::Kind::equal) return true;
  const bool recomputes = finding.kind == AuditVerdict::Kind::transient && wrong < max_wrong_in_a_row &&
                          options_.run.on_audit == RunOptions::OnAudit::recompute;
  const std::string what = fmt::format("audit of update {}: {}", step_ + 1, finding.what);
  if (finding.began && runtime_.is_first())
    write_first_difference(setup_.run_dir, step_ + 1, *finding.began, to_text(*finding.began));
  if (!recomputes) fail_unsafe(ExitCode::corrupted, "audit", what);
  tell("audit", fmt::format("{}; the update is computed again", what), step_);
  return false;
}

}  // namespace sestina
