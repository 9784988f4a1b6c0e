// Finds out which ranks are lost when a wait finds no end. A wait knows its own peers at best, and these may themselves
// wait for the lost one: so every rank whose time is over tells the first two, which speak for all, and these hear who
// does not.
#pragma once
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

class RollCall {
 public:
  // Collective over the ranks of `all`; may be called again after end().
  void start(MPI_Comm all) {
    if (!requests_.empty())
      fail(ExitCode::unavailable, "a rank was lost in this process before: MPI is of no use in it");
    MPI_Comm_dup(all, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    std::array<char, name_size> name{};
    gethostname(name.data(), name.size() - 1);
    nodes_.resize(name_size * static_cast<std::size_t>(size_));
    MPI_Allgather(name.data(), static_cast<int>(name_size), MPI_CHAR, nodes_.data(), static_cast<int>(name_size),
                  MPI_CHAR, comm_);
  }

  // Says that this rank's time is over.
  void answer() {
    if (comm_ == MPI_COMM_NULL || !requests_.empty()) return;
    static char word = 0;
    const auto request = [&] { return &requests_.emplace_back(MPI_REQUEST_NULL); };
    words_.resize(static_cast<std::size_t>(size_));
    requests_.reserve(static_cast<std::size_t>(size_) + speakers);
    for (int peer = 0; rank_ < speakers && peer < size_; ++peer)
      if (peer != rank_) MPI_Irecv(&words_[static_cast<std::size_t>(peer)], 1, MPI_CHAR, peer, 0, comm_, request());
    for (int peer = 0; peer < speakers && peer < size_; ++peer)
      if (peer != rank_) MPI_Isend(&word, 1, MPI_CHAR, peer, 0, comm_, request());
  }

  // Ends the roll call: nobody waits any more.
  void end() {
    if (comm_ != MPI_COMM_NULL && requests_.empty()) MPI_Comm_free(&comm_);
  }

  // Returns the ranks that have not answered, "rank 2, 3 (node b)"; "" where this rank is not one that hears answers,
  // or all have answered.
  std::string silent() {
    if (rank_ >= speakers || requests_.empty()) return "";
    constexpr double patience = 2;  // seconds; others' waits began at other times
    const auto begin = std::chrono::steady_clock::now();
    std::vector<int> ranks;
    do {
      ranks.clear();
      for (int peer = 0, at = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        int here = 0;
        MPI_Request_get_status(requests_[static_cast<std::size_t>(at++)], &here, MPI_STATUS_IGNORE);
        if (here == 0) ranks.push_back(peer);
      }
    } while (!ranks.empty() &&
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < patience);
    if (ranks.empty()) return "";
    std::vector<std::string> nodes;
    for (const int rank : ranks)
      if (nodes.empty() || nodes.back() != node(rank)) nodes.push_back(node(rank));
    return fmt::format("rank {} (node {})", fmt::join(ranks, ", "), fmt::join(nodes, ", "));
  }

 private:
  static constexpr int speakers = 2;
  static constexpr std::size_t name_size = 64;
  std::string node(int rank) const { return &nodes_[name_size * static_cast<std::size_t>(rank)]; }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<char> words_, nodes_;    // nodes: host names, name_size characters each
  std::vector<MPI_Request> requests_;  // receives from the other ranks come first
};

inline RollCall& roll_call() {
  static RollCall call;  // one process, one
  return call;
}

}  // namespace sestina
