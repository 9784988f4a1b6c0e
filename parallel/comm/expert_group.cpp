#include "parallel/comm/expert_group.hpp"

#include <numeric>

#include "kernels/blas/sums.hpp"
#include "parallel/comm/stream_order.hpp"

namespace sestina {

namespace {

std::int64_t rows_in(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace

template <class Exec>
void ExpertGroup<Exec>::exchange_counts(ExpertRows& rows) {
  ++count_.counts;
  const auto ranks = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
  const std::size_t experts = rows.sent.size(), own = experts / ranks, bytes = own * sizeof(std::int64_t);
  SESTINA_REQUIRE(own * ranks == experts, "{} experts on {} ranks", experts, ranks);
  by_source_.resize(experts);
  rows.received.resize(experts);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == me) continue;
    group_.receive(static_cast<int>(peer), &by_source_[peer * own], bytes);
    group_.send(static_cast<int>(peer), &rows.sent[peer * own], bytes);
  }
  group_.wait("numbers of tokens for the experts");
  std::copy_n(rows.sent.begin() + static_cast<std::ptrdiff_t>(me * own), own,
              by_source_.begin() + static_cast<std::ptrdiff_t>(me * own));
  for (std::size_t expert = 0; expert < own; ++expert)
    for (std::size_t source = 0; source < ranks; ++source)
      rows.received[expert * ranks + source] = by_source_[source * own + expert];
  if (const std::int64_t all = rows_in(rows.received); all > room_)
    fail(ExitCode::bad_deck,
         "parallel.expert_room: {} rows of tokens come to the experts of rank {} of {} in one pass, which has room for "
         "{}: raise it, or set 0 for room that is always enough",
         all, me, ranks, room_);
}

// Both sides go through the messages of a pair of ranks expert by expert, in the same order.
template <class Exec>
void ExpertGroup<Exec>::find_ways(const ExpertRows& rows) {
  const std::size_t ranks = static_cast<std::size_t>(size()), experts = rows.sent.size(), own = experts / ranks;
  SESTINA_REQUIRE(rows.received.size() == experts, "{} numbers of tokens for {} experts", rows.received.size(),
                  experts);
  out_.resize(experts);
  in_.resize(experts);
  std::int64_t begin = 0;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    out_[expert] = {static_cast<int>(expert / own), rows.sent[expert], begin};
    begin += rows.sent[expert];
  }
  begin = 0;
  for (std::size_t expert = 0; expert < own; ++expert)
    for (std::size_t source = 0; source < ranks; ++source) {
      const std::int64_t count = rows.received[expert * ranks + source];
      in_[source * own + expert] = {static_cast<int>(source), count, begin};
      begin += count;
    }
}

template <class Exec>
template <class T>
void ExpertGroup<Exec>::move(const Exec& exec, const char* name, const std::vector<Way>& from_ways, const T* from,
                             const std::vector<Way>& to_ways, T* to, std::size_t width) {
  ++count_.sends;
  const auto at = [width](std::int64_t row) { return static_cast<std::size_t>(row) * width; };
  on_their_way_ = name;
  start_after(exec, group_, "expert rows");
  for (const Way& way : to_ways)
    if (way.peer != rank()) group_.receive(way.peer, to + at(way.begin), at(way.count) * sizeof(T));
  for (const Way& way : from_ways)
    if (way.peer != rank()) group_.send(way.peer, from + at(way.begin), at(way.count) * sizeof(T));
  const std::size_t own = from_ways.size() / static_cast<std::size_t>(size()),
                    first = static_cast<std::size_t>(rank()) * own;
  for (std::size_t expert = first; expert < first + own; ++expert) {
    const Way &out = from_ways[expert], &in = to_ways[expert];
    SESTINA_REQUIRE(out.count == in.count, "{} rows to oneself, {} from oneself", out.count, in.count);
    convert<Exec, T, T>(exec, Vector<const T, Exec>(from + at(out.begin), at(out.count)),
                        Vector<T, Exec>(to + at(in.begin), at(in.count)));
  }
}

template <class Exec>
void ExpertGroup<Exec>::finish(const Exec& exec, const SharedWork& work) {
  if (work) {
    const TraceSpan span(trace_, "while tokens travel");
    work();
  }
  group_.wait_in(queue_of(exec), on_their_way_);
}

#define SESTINA_EXPERT_SENDS(T)                                                                                 \
  template <class Exec>                                                                                         \
  void ExpertGroup<Exec>::send(const Exec& exec, const ExpertRows& rows, Matrix<const T, Exec> mine,            \
                               Matrix<T, Exec> at_experts) {                                                    \
    find_ways(rows);                                                                                            \
    move(exec, "tokens to the experts", out_, mine.data(), in_, at_experts.data(), mine.extent(1));             \
  }                                                                                                             \
  template <class Exec>                                                                                         \
  void ExpertGroup<Exec>::send_back(const Exec& exec, const ExpertRows& rows, Matrix<const T, Exec> at_experts, \
                                    Matrix<T, Exec> mine) {                                                     \
    find_ways(rows);                                                                                            \
    move(exec, "tokens back from the experts", in_, at_experts.data(), out_, mine.data(), mine.extent(1));      \
  }
SESTINA_EXPERT_SENDS(float)
SESTINA_EXPERT_SENDS(bf16)
SESTINA_EXPERT_SENDS(double)

#define SESTINA_EXPERT_GROUP(Exec) template class ExpertGroup<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_EXPERT_GROUP)

}  // namespace sestina
