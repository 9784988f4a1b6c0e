// A group that is built on another and leaves to it whatever it does not do itself; but for the order of queues: its
// own exchanges may belong to several groups. No Kokkos.
#pragma once
#include <memory>
#include <utility>

#include "parallel/comm/communicator.hpp"

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
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    return inner_->make_exchange(name, std::move(sends), std::move(receives));
  }
  std::unique_ptr<Exchange> make_all_gather(const char* name, const void* mine, std::size_t bytes, void* all) override {
    return inner_->make_all_gather(name, mine, bytes, all);
  }
  void send(int peer, const void* data, std::size_t bytes) override { inner_->send(peer, data, bytes); }
  void receive(int peer, void* data, std::size_t bytes) override { inner_->receive(peer, data, bytes); }
  void wait(const char* name) override { inner_->wait(name); }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_->split(color, key); }
  std::unique_ptr<Communicator> split_by_node() override { return inner_->split_by_node(); }
  const NodeLevels* levels() const override { return inner_->levels(); }

 protected:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace sestina
