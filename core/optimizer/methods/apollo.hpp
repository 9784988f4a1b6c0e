// APOLLO (arXiv 2412.05270): the gradient, its channels scaled as Adam on a random projection of it would scale them.
// APOLLO-Mini has scale_type = "tensor", rank = 1, scale = 128. No Kokkos.
#pragma once
#include "core/optimizer/methods/low_rank_options.hpp"

namespace sestina {

struct ApolloOptions : LowRankOptions {
  bool scale_front = false;
  enum class ScaleType : std::uint8_t { channel, tensor } scale_type = ScaleType::channel;
  double growth_limit = 1.01, norm_eps = 1e-8;
  std::int64_t seed = 0;  // seed of the projectors

  void fields(OptionFields&);
};

void register_apollo();

}  // namespace sestina
