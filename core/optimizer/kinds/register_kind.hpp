// One more matrix optimizer from outside: a program that links Sestina::app registers its kind, then calls run_program
// (app/program.hpp). Decks name it as optimizer.kind like any other; plan, memory check, checkpoints and ranks take it
// from its description. An example: regression/install/own_optimizer.
#pragma once
#include <functional>

#include "core/optimizer/kinds/matrix_optimizer.hpp"

namespace sestina {

template <class Space>
struct AddedMatrix {
  std::function<std::unique_ptr<MatrixOptimizer<Space>>(const Space&, const MatrixOptions&, const MatrixShape&)> make;
  std::size_t (*scratch_bytes)(const MatrixOptions&, std::size_t rows, std::size_t cols) = nullptr;
};

template <class Space>
void add_matrix_maker(const std::string& kind, AddedMatrix<Space>);

// Registers Optimizer<Space>, constructed from (exec, options, shape), on every space of this build; its static
// scratch_bytes(options, rows, cols) says what an update takes of the lane's workspace. Call it at the start of main:
// pointers into the table end, and nobody may read it meanwhile.
template <template <class Space> class Optimizer>
void register_matrix_kind(const MatrixKind& kind) {
  add_matrix_kind(kind);
#define SESTINA_ADD_MAKER(Space)                                                                                \
  add_matrix_maker<Space>(kind.name, {[](const Space& exec, const MatrixOptions& options,                       \
                                         const MatrixShape& shape) -> std::unique_ptr<MatrixOptimizer<Space>> { \
                                        return std::make_unique<Optimizer<Space>>(exec, options, shape);        \
                                      },                                                                        \
                                      &Optimizer<Space>::scratch_bytes});
  SESTINA_INSTANTIATE_LANES(SESTINA_ADD_MAKER)
#undef SESTINA_ADD_MAKER
}

}  // namespace sestina
