// One more matrix optimizer from outside: a program that links Sestina::app registers its kind, then calls run_program
// (app/program.hpp). Decks name it as optimizer.kind like any other; plan, memory check, checkpoints and ranks take it
// from its description. An example: regression/install/own_optimizer.
#pragma once
#include <functional>

#include "core/optimizer/kinds/matrix_optimizer.hpp"

namespace sestina {

template <class Space>
using MatrixMaker =
    std::function<std::unique_ptr<MatrixOptimizer<Space>>(const Space&, const MatrixOptions&, const MatrixShape&)>;

template <class Space>
void add_matrix_maker(const std::string& kind, MatrixMaker<Space>);

// Registers Optimizer<Space>, constructed from (exec, options, shape), on every space of this build. Call it at the
// start of main: pointers into the table end, and nobody may read it meanwhile.
template <template <class Space> class Optimizer>
void register_matrix_kind(const MatrixKind& kind) {
  add_matrix_kind(kind);
#define SESTINA_ADD_MAKER(Space)                                                                    \
  add_matrix_maker<Space>(kind.name,                                                                \
                          [](const Space& exec, const MatrixOptions& options,                       \
                             const MatrixShape& shape) -> std::unique_ptr<MatrixOptimizer<Space>> { \
                            return std::make_unique<Optimizer<Space>>(exec, options, shape);        \
                          });
  SESTINA_INSTANTIATE_LANES(SESTINA_ADD_MAKER)
#undef SESTINA_ADD_MAKER
}

}  // namespace sestina
