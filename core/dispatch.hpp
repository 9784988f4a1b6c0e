// Turns the deck's words into types: calls f(space instance, tag of the compute type) for run.space and
// train.precision.
#pragma once
#include <type_traits>

#include "core/deck/options.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

template <class T>
struct TypeTag {
  using type = T;
};

template <class Function>
auto dispatch(RunOptions::Space space, TrainOptions::Precision precision, Function&& f) {
  const auto with_type = [&](const auto& exec) {
    return precision == TrainOptions::Precision::bf16 ? f(exec, TypeTag<bf16>{}) : f(exec, TypeTag<float>{});
  };
  if constexpr (!std::is_same_v<Host, Device>)
    if (space == RunOptions::Space::device) return with_type(Device{});
  return with_type(Host{});
}

}  // namespace sestina
