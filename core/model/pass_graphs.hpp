// The passes and the updates of a stage on a device, recorded and then started by one call each (train.graphs): a
// device is not kept waiting for its launches, where a pass takes it less time than they take the host.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/base/launch_graph.hpp"

namespace sestina {

// What a pass sends to the device follows from these: where its weights, activations and tokens lie, and numbers.
struct PassKey {
  const void *weights = nullptr, *slot = nullptr, *tokens = nullptr;
  bool masks_documents = false;
  bool backward = false, adds = false;  // the backward pass follows, and adds to the gradients that are there
  double gradient_scale = 0;            // of a backward pass
  bool operator==(const PassKey&) const = default;
};

template <class Graph = LaunchGraph>
class PassGraphs {
 public:
  static constexpr std::size_t most = 32;  // with other keys passes are done as they come
  explicit PassGraphs(void* queue) : queue_(queue) {}

  // Does the pass of this key: as it is the first time, when libraries get ready for what it asks of them; recorded,
  // and started, the second time; started from then on.
  template <class Pass>
  void run(const PassKey& key, const Pass& pass) {
    const auto known = std::find_if(passes_.begin(), passes_.end(), [&](const Known& k) { return k.key == key; });
    if (known == passes_.end()) {
      pass();
      if (passes_.size() < most) passes_.push_back({key, nullptr});
      return;
    }
    if (!known->graph) {
      auto graph = std::make_unique<Graph>(queue_);
      graph->record(pass);
      known->graph = std::move(graph);
    }
    known->graph->start();
  }

 private:
  struct Known {
    PassKey key;
    std::unique_ptr<Graph> graph;  // null: not recorded yet
  };
  void* queue_;
  std::vector<Known> passes_;
};

// Updates have other numbers each time (rates, corrections of the bias): each is recorded, and started at once.
template <class Graph = LaunchGraph>
class UpdateGraph {
 public:
  explicit UpdateGraph(void* queue) : graph_(queue) {}

  // Does an update that sends the same as others: as it is the first two times, in which an optimizer may allocate.
  template <class Update>
  void run(const Update& update) {
    if (known_ < 2) {
      ++known_;
      return update();
    }
    graph_.record(update);
    graph_.start();
  }

 private:
  Graph graph_;
  int known_ = 0;
};

}  // namespace sestina
