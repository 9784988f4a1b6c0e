// Matrices, or shares of them, that are updated on another rank than those that compute with them. Round by round,
// gradients travel there in one exchange and updated weights back in another, while the next round's gradients and the
// last round's weights are under way (Canzona, algorithm 3). Rounds take turns in two places of memory. Which matrices
// a round has, who sends what, and the update itself are those of matrix_homes.hpp and stage_shares.hpp.
#pragma once
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/layout/tensor_spec.hpp"
#include "core/model/seams.hpp"
#include "kernels/base/threads.hpp"
#include "kernels/blas/sums.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/stream_order.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/exchange/update_exchange.hpp"

namespace sestina {

// What this rank keeps of a matrix that it updates for others.
template <class Exec, class T>
struct SentMatrix {
  Kokkos::View<float**, Kokkos::LayoutRight, typename Exec::memory_space> master;  // (rows, cols)
  Matrix<float, Exec> gradient;                                                    // lies in its round's place
  Matrix<T, Exec> weight;  // lies there too and is sent; the master where T is float
};

template <class Exec, class T>
class UpdateRounds {
 public:
  // The group, whose ranks exchange gradients and weights, must outlive it. name: of what waits are for.
  UpdateRounds(const Exec& exec, Communicator& group, const char* name) : exec_(exec), group_(group), name_(name) {}

  // elements: of each place, for the largest round that comes there.
  void make_places(const RoundPlaces& elements) {
    for (std::size_t p = 0; p < group_places; ++p) {
      places_[p].gradients = decltype(places_[p].gradients)("sestina::whole_gradients", elements[p]);
      places_[p].weights = decltype(places_[p].weights)("sestina::whole_weights", shared ? 0 : elements[p]);
    }
  }
  // Lays gradients and weights of a round's matrices, which derive from SentMatrix, into its place.
  template <class Sent>
  void place(std::size_t round, std::span<Sent> matrices) const {
    const Place& place = places_[round % group_places];
    std::size_t begin = 0;
    for (SentMatrix<Exec, T>& matrix : matrices) {
      const std::size_t m = matrix.master.extent(0), n = matrix.master.extent(1);
      matrix.gradient = Matrix<float, Exec>(place.gradients.data() + begin, m, n);
      if constexpr (shared)
        matrix.weight = Matrix<T, Exec>(matrix.master.data(), m, n);
      else
        matrix.weight = Matrix<T, Exec>(place.weights.data() + begin, m, n);
      begin += aligned_elements(m * n);
    }
  }
  // Adds the next round's exchanges.
  void add(std::unique_ptr<Exchange> gradients, std::unique_ptr<Exchange> weights) {
    rounds_.push_back({std::move(gradients), std::move(weights)});
  }

  // Calls update(round) for each round once its gradients are there. span: name of an update in the trace (null: none).
  template <class Update>
  void run(Trace* trace, const char* span, const Update& update) {
    if (rounds_.empty()) return;
    start_after(exec_, group_, name_);
    rounds_[0].gradients->start();
    for (std::size_t r = 0; r < rounds_.size(); ++r) {
      wait(*rounds_[r].gradients);
      if (r + 1 < rounds_.size()) rounds_[r + 1].gradients->start();
      {
        const TraceSpan shown(trace, span, static_cast<std::int64_t>(r));
        update(r);
        start_after(exec_, group_, name_);
      }
      rounds_[r].weights->start();
      if (r > 0) wait(*rounds_[r - 1].weights);
    }
    wait(*rounds_.back().weights);
  }
  // Sends the master weights of a round's matrices, which were written, to the ranks that compute with them.
  template <class Sent>
  void publish(std::size_t round, std::span<Sent> matrices) {
    if constexpr (!shared)
      for (const SentMatrix<Exec, T>& matrix : matrices)
        convert<Exec, float, T>(exec_, Vector<const float, Exec>(matrix.master.data(), matrix.master.size()),
                                Vector<T, Exec>(matrix.weight.data(), matrix.weight.size()));
    start_after(exec_, group_, name_);
    rounds_[round].weights->start();
    rounds_[round].weights->finish_in(queue_of(exec_));
  }

  double take_wait_seconds() { return std::exchange(wait_seconds_, 0.0); }  // waits for exchanges in run
  std::int64_t exchanges_per_step() const { return 2 * static_cast<std::int64_t>(rounds_.size()); }

 private:
  struct Round {
    std::unique_ptr<Exchange> gradients, weights;
  };
  struct Place {
    Kokkos::View<float*, typename Exec::memory_space> gradients;
    Kokkos::View<T*, typename Exec::memory_space> weights;
  };
  static constexpr bool shared = std::is_same_v<T, float>;

  void wait(Exchange& exchange) {
    const SecondsSpent spent(wait_seconds_);
    exchange.finish_in(queue_of(exec_));
  }

  Exec exec_;
  Communicator& group_;
  const char* name_;
  std::vector<Round> rounds_;
  Place places_[group_places];
  double wait_seconds_ = 0;
};

}  // namespace sestina
