#include "parallel/plan/pipeline_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using Kind = ParallelOptions::Schedule;

// The pipeline as it is played through, action by action.
class Play {
 public:
  explicit Play(const PipelineOptions& options) : set_(options), stages_(at(options.stages)), free_(at(options.ranks)) {
    for (int s = 0; s < set_.stages; ++s) {
      Progress& stage = stages_[at(s)];
      if (is_async()) stage.forwards = stage.ahead = set_.delay_scale * (set_.stages - 1 - s);
      stage.forward_end.assign(at(stage.ahead + set_.micros), 0);
      stage.backward_end.assign(at(set_.micros), 0);
    }
  }

  PipelineSchedule run() {
    PipelineSchedule out;
    out.ranks.resize(at(set_.ranks));
    while (const std::optional<Action> action = next()) {
      finish(*action);
      out.all.push_back(*action);
      out.ranks[at(set_.rank_of(action->stage))].push_back(*action);
    }
    for (const Progress& stage : stages_) out.ahead.push_back(stage.ahead);
    double work = 0;
    for (const Action& action : out.all) {
      out.span = std::max(out.span, action.end);
      work += action.end - action.begin;
    }
    out.bubble = 1 - work / (out.span * set_.ranks);
    return out;
  }

 private:
  struct Progress {
    int ahead = 0, forwards = 0, backwards = 0, weights = 0;
    bool updated = false, is_stale = true;
    std::optional<Action> next;                     // the action that the stage can begin first
    std::vector<double> forward_end, backward_end;  // by micro-batch
  };

  bool is_async() const { return set_.kind == Kind::async_1f1b; }
  bool is_split() const { return set_.kind == Kind::zb_h1; }
  int chunks() const { return set_.stages / set_.ranks; }

  // Returns the action that can begin first; among equals, backwards come before forwards before weight parts. What a
  // stage can begin changes only with its rank and with its neighbours.
  std::optional<Action> next() {
    for (int s = 0; s < set_.stages; ++s)
      if (stages_[at(s)].is_stale) choose(s, true);
    std::optional<Action> best = first_of_all();
    if (best) return best;
    for (int s = 0; s < set_.stages; ++s) choose(s, false);  // a limit would stop the pipeline for good
    return first_of_all();
  }
  void choose(int s, bool limited) {
    Progress& stage = stages_[at(s)];
    stage.next.reset();
    for (const ActionKind kind :
         {ActionKind::update, backward_kind(), ActionKind::forward, ActionKind::backward_weight}) {
      const std::optional<Action> action = possible(kind, s, limited);
      if (action && (!stage.next || before(*action, *stage.next))) stage.next = action;
    }
    stage.is_stale = !limited;
  }
  std::optional<Action> first_of_all() const {
    std::optional<Action> best;
    for (const Progress& stage : stages_)
      if (stage.next && (!best || before(*stage.next, *best))) best = stage.next;
    return best;
  }
  ActionKind backward_kind() const { return is_split() ? ActionKind::backward_input : ActionKind::backward; }

  bool before(const Action& a, const Action& b) const {
    if (a.begin != b.begin) return a.begin < b.begin;
    const auto rank = [&](const Action& x) {
      return x.kind == ActionKind::backward_weight ? 2 : x.kind == ActionKind::forward ? 1 : 0;
    };
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    return rank(a) == 0 && a.stage > b.stage;
  }

  std::optional<Action> possible(ActionKind kind, int s, bool limited) const {
    const Progress& stage = stages_[at(s)];
    const double free = free_[at(set_.rank_of(s))];
    const auto action = [&](int micro, double ready, double length) {
      const double begin = std::max(free, ready);
      return Action{kind, s, micro, begin, begin + length};
    };
    switch (kind) {
      case ActionKind::forward: {
        const int m = stage.forwards;
        if (m == static_cast<int>(stage.forward_end.size()) || (limited && full(s))) return {};
        if (is_async() && m - stage.ahead > stage.backwards) return {};
        if (limited && set_.kind == Kind::interleaved && !in_turn(s, true)) return {};
        if (s == 0) return action(m, 0, 1);
        const Progress& before = stages_[at(s - 1)];
        if (m >= before.forwards) return {};
        return action(m, before.forward_end[at(m)], 1);
      }
      case ActionKind::backward:
      case ActionKind::backward_input: {
        const int m = stage.backwards;
        if (m == set_.micros || m >= stage.forwards) return {};
        if (is_async() && m + stage.ahead >= stage.forwards) return {};  // forward and backward in turn
        if (set_.kind == Kind::gpipe && limited && !all_forwards(s)) return {};
        if (limited && set_.kind == Kind::interleaved && !in_turn(s, false)) return {};
        double ready = stage.forward_end[at(m)];
        if (s + 1 < set_.stages) {
          const Progress& later = stages_[at(s + 1)];
          if (m >= later.backwards) return {};
          ready = std::max(ready, later.backward_end[at(m)]);
        }
        return action(m, ready, is_split() ? 1 : 2);
      }
      case ActionKind::backward_weight:
        if (!is_split() || stage.weights == stage.backwards) return {};
        return action(stage.weights, 0, 1);
      case ActionKind::update:
        if (!is_async() || stage.backwards < set_.micros || stage.updated) return {};
        return action(0, 0, 0);
    }
    return {};
  }

  bool all_forwards(int stage) const {
    for (int s = 0; s < set_.stages; ++s)
      if (set_.rank_of(s) == set_.rank_of(stage) && stages_[at(s)].forwards < set_.micros) return false;
    return true;
  }
  int in_flight(int s) const {
    const Progress& stage = stages_[at(s)];
    return stage.forwards - (is_split() ? stage.weights : stage.backwards);
  }
  // No further micro-batch comes in before one has gone out.
  bool full(int s) const {
    const int rank = set_.rank_of(s);
    if (set_.kind == Kind::gpipe || set_.kind == Kind::interleaved || is_async()) return false;
    const Progress& stage = stages_[at(s)];
    // Weight parts may wait, as long as no rank holds more than the first one.
    if (is_split()) return stage.forwards - stage.backwards >= set_.ranks - rank || in_flight(s) >= set_.ranks;
    return in_flight(s) >= set_.ranks - rank;
  }
  // Interleaved schedule: the stages (chunks) of rank r take turns in groups of P micro-batches, the last chunk first
  // on the way back; after 2 (P-1-r) + (chunks-1) P forwards, forward and backward alternate.
  bool in_turn(int s, bool forward) const {
    const int rank = set_.rank_of(s), most = chunks() * set_.micros;
    int forwards = 0, backwards = 0;
    for (int other = rank; other < set_.stages; other += set_.ranks) {
      forwards += stages_[at(other)].forwards;
      backwards += stages_[at(other)].backwards;
    }
    const int warm = std::min(2 * (set_.ranks - 1 - rank) + (chunks() - 1) * set_.ranks, most);
    if (forward ? forwards > warm + backwards : forwards < std::min(warm + backwards + 1, most)) return false;
    const int number = forward ? forwards : backwards, group = number / (set_.ranks * chunks());
    const int members = std::min(set_.ranks, set_.micros - group * set_.ranks);
    const int chunk = number % (set_.ranks * chunks()) / members;
    return s == rank + (forward ? chunk : chunks() - 1 - chunk) * set_.ranks;
  }

  void finish(const Action& action) {
    Progress& stage = stages_[at(action.stage)];
    free_[at(set_.rank_of(action.stage))] = action.end;
    for (int s = 0; s < set_.stages; ++s)
      if (set_.rank_of(s) == set_.rank_of(action.stage) || std::abs(s - action.stage) == 1)
        stages_[at(s)].is_stale = true;
    switch (action.kind) {
      case ActionKind::forward:
        stage.forward_end[at(stage.forwards++)] = action.end;
        break;
      case ActionKind::backward:
      case ActionKind::backward_input:
        stage.backward_end[at(stage.backwards++)] = action.end;
        break;
      case ActionKind::backward_weight:
        ++stage.weights;
        break;
      case ActionKind::update:
        stage.updated = true;
    }
  }

  const PipelineOptions& set_;
  std::vector<Progress> stages_;
  std::vector<double> free_;  // by rank
};

// Counts what must be held at a time, by stage and by boundary, over the whole order. Between processes a message may
// lie on both sides for as long as its sender's slot is in use.
void add_places(PipelineSchedule& schedule, const PipelineOptions& set) {
  const bool split = set.kind == Kind::zb_h1;
  std::vector<int> forwards = schedule.ahead, backwards(at(set.stages), 0), ends(at(set.stages), 0);
  schedule.slots.assign(at(set.stages), 1);
  schedule.activations.assign(at(set.stages), 1);
  schedule.gradients.assign(at(set.stages), 1);
  const auto raise = [](int& most, int now) { most = std::max(most, now); };
  for (const Action& action : schedule.all) {
    const int s = action.stage;
    if (action.kind == ActionKind::forward) ++forwards[at(s)];
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) ++backwards[at(s)];
    raise(schedule.slots[at(s)], forwards[at(s)] - ends[at(s)]);
    if (s + 1 < set.stages) raise(schedule.activations[at(s)], forwards[at(s)] - ends[at(s + 1)]);
    if (s > 0) raise(schedule.gradients[at(s - 1)], backwards[at(s)] - ends[at(s - 1)]);
    raise(schedule.tied_gradients, backwards.back() - ends.front());
    if (action.kind == (split ? ActionKind::backward_weight : ActionKind::backward)) ++ends[at(s)];
  }
  schedule.tied_weights = 1 + update_delay(set, 0);
  for (int s = 0; s + 1 < set.stages; ++s) {
    raise(schedule.activations[at(s)], std::max(schedule.slots[at(s)], schedule.slots[at(s + 1)]));
    if (set.rank_of(s) != set.rank_of(s + 1)) raise(schedule.gradients[at(s)], schedule.slots[at(s)]);
  }
}

}  // namespace

PipelineOptions pipeline_options(const ParallelOptions& parallel, int pipeline_ranks, int micros) {
  PipelineOptions options;
  if (parallel.pp > 1) options.kind = parallel.schedule;
  options.stages = parallel.pp;
  options.ranks = pipeline_ranks;
  options.round_robin = parallel.placement == ParallelOptions::Placement::round_robin;
  options.micros = micros;
  options.delay_scale = parallel.delay_scale;
  return options;
}

PipelineSchedule make_schedule(const PipelineOptions& options) {
  SESTINA_REQUIRE(options.ranks > 0 && options.stages % options.ranks == 0 && options.micros > 0,
                  "{} stages on {} ranks, {} micro-batches", options.stages, options.ranks, options.micros);
  PipelineSchedule schedule = Play(options).run();
  add_places(schedule, options);
  return schedule;
}

int update_delay(const PipelineOptions& options, int stage) {
  if (options.kind != Kind::async_1f1b) return 0;
  const int ahead = options.delay_scale * (options.stages - 1 - stage);
  return (ahead + options.micros - 1) / options.micros;
}

bool compares_gradients(const PlanInput& input, const PipelineOptions& pipe, const PipelineSchedule& schedule) {
  const ParallelOptions& parallel = input.parallel;
  return input.tensors_every > 0 && parallel.is_async() && pipe.ranks == 1 && parallel.dp * parallel.tp == 1 &&
         schedule.ahead[0] >= pipe.micros && !input.model.tie_word_embeddings;
}

StagePlace stage_place(const PipelineOptions& options, const PipelineSchedule& schedule,
                       const ParallelOptions& parallel, std::int64_t merge_every, int stage) {
  StagePlace place;
  place.number = stage;
  place.micros = options.micros;
  place.slots = schedule.slots[at(stage)];
  place.ahead = schedule.ahead[at(stage)];
  place.ahead_before = stage > 0 ? schedule.ahead[at(stage - 1)] : 0;
  place.ahead_first = schedule.ahead.front();
  place.delay = update_delay(options, stage);
  place.split = options.kind == Kind::zb_h1;
  place.drain_every = parallel.drain_every;
  place.merge_every = merge_every;
  place.stash = parallel.stash;
  place.correction = parallel.correction.kind;
  if (place.correction == ParallelOptions::DelayCorrection::pipemare) place.warmup = parallel.correction.warmup;
  return place;
}

std::vector<std::string> draw(const PipelineSchedule& schedule, int columns) {
  std::vector<std::string> rows;
  for (const auto& actions : schedule.ranks) {
    std::string row(at(columns), '.');
    for (const Action& action : actions)
      for (int t = static_cast<int>(action.begin); t < static_cast<int>(action.end) && t < columns; ++t) {
        const int m = action.micro % 26;
        const bool forward = action.kind == ActionKind::forward;
        row[at(t)] = forward ? static_cast<char>('0' + action.micro % 10)
                             : static_cast<char>((action.kind == ActionKind::backward_weight ? 'A' : 'a') + m);
      }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace sestina
