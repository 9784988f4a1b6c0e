// The largest load of an expert in an update, as stages and ranks tell each other. No Kokkos.
#pragma once

namespace sestina {

// The largest load of an expert, over the mean load of its layer's experts, and that layer, of equal ones the first.
struct LargestLoad {
  double over_mean = 0;
  int layer = -1;  // -1: no load is known
  void add(const LargestLoad& other) {
    if (other.layer < 0 || over_mean > other.over_mean) return;
    if (layer < 0 || other.over_mean > over_mean || other.layer < layer) *this = other;
  }
};

}  // namespace sestina
