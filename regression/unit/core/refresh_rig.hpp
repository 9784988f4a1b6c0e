// What tests of refreshes share.
#pragma once
#include "../linear_algebra.hpp"
#include "../spaces.hpp"
#include "core/optimizer/refresh/refresh.hpp"

namespace sestina::reference {

template <class Space>
Stream<Space> make_stream(std::size_t bytes) {
  return {.exec = Space(), .gemm = Gemm<Space>(Space()), .workspace = Workspace<Space>(bytes)};
}

// A refresh whose basis takes the place of the one that it comes from.
template <class Space>
RefreshJob<Space> job_in_place(RefreshMethod method, const Field<float, Space>& factor,
                               const Field<float, Space>& basis) {
  return {
      .method = method, .name = "factor", .factor = factor.read(), .basis = basis.read(), .new_basis = basis.matrix()};
}

}  // namespace sestina::reference
