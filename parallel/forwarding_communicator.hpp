// What a group that is built on another leaves to it. No Kokkos.
#pragma once
#include <memory>
#include <utility>

#include "parallel/communicator.hpp"

namespace sestina {

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int size() const override { return inner_->size(); }
  int rank() const override { return inner_->rank(); }
  void barrier() override { inner_->barrier(); }
  void all_reduce(double* data, std::size_t n, Reduction reduction) override { inner_->all_reduce(data, n, reduction); }
  void broadcast(void* data, std::size_t bytes, int root) override { inner_->broadcast(data, bytes, root); }
  void all_gather(const void* mine, std::size_t bytes, void* all) override { inner_->all_gather(mine, bytes, all); }

 protected:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace sestina
