// The way to add a matrix optimizer: ours (core/optimizer/register_optimizers.cpp), and those of a program that links
// Sestina::app, registers its own and calls run_program (app/program.hpp; an example:
// regression/install/own_optimizer). Decks name it as optimizer.kind; plan, memory check, checkpoints and ranks take it
// from its row.
#pragma once
#include <memory>
#include <string>

#include "core/optimizer/base/matrix_optimizer.hpp"

namespace sestina {

template <class Space>
struct MatrixMaker {
  std::unique_ptr<MatrixOptimizer<Space>> (*make)(const Space&, const MatrixOptions&, const MatrixShape&) = nullptr;
  void (*declare_scratch)(Workspace<Space>&, const MatrixOptions&, std::size_t rows, std::size_t cols) = nullptr;
};

template <class Space>
void add_matrix_maker(const std::string& kind, MatrixMaker<Space>);

// Registers Optimizer<Space>, constructed from (exec, options, shape), on every space of this build; its static
// declare_scratch(workspace, options, rows, cols) takes of a workspace what an update takes of the stream's, by the
// same structs (kernels/blas/workspace.hpp), in frames that give it back. Call it at the start of main: pointers into
// the table become invalid, and nobody may read it meanwhile.
template <template <class Space> class Optimizer>
void register_matrix_kind(MatrixKind kind) {
  kind.checks.insert(kind.checks.begin(), require_skew_updates);
  add_matrix_kind(kind);
#define SESTINA_ADD_MAKER(Space)                                                                                \
  add_matrix_maker<Space>(kind.name, {[](const Space& exec, const MatrixOptions& options,                       \
                                         const MatrixShape& shape) -> std::unique_ptr<MatrixOptimizer<Space>> { \
                                        return std::make_unique<Optimizer<Space>>(exec, options, shape);        \
                                      },                                                                        \
                                      &Optimizer<Space>::declare_scratch});
  SESTINA_INSTANTIATE_LANES(SESTINA_ADD_MAKER)
#undef SESTINA_ADD_MAKER
}

}  // namespace sestina
