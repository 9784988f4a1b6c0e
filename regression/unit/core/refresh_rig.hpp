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

}  // namespace sestina::reference
