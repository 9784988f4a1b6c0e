// Makes stages from the deck's words: the one place where run.space and train.precision become types. No Kokkos.
#pragma once
#include <memory>

#include "parallel/step/stage_maker.hpp"

namespace sestina {

std::unique_ptr<StageMaker> make_stages(RunOptions::Space, TrainOptions::Precision);

}  // namespace sestina
