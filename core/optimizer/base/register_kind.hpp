// The way to add a matrix optimizer: ours (core/optimizer/register_optimizers.cpp), and those of a program that links
// Sestina::app, registers its own and calls run_program (app/program.hpp; an example:
// regression/install/own_optimizer). Decks name it as optimizer.kind; plan, memory check, checkpoints and ranks take it
// from its row.
#pragma once
#include <memory>
#include <string>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/base/update_batches.hpp"

namespace sestina {

template <class Space>
struct MatrixMaker {
  std::unique_ptr<MatrixOptimizer<Space>> (*make)(const Space&, const MatrixOptions&, const MatrixShape&) = nullptr;
  void (*declare_scratch)(Workspace<Space>&, const MatrixOptions&, std::size_t rows, std::size_t cols) = nullptr;
  // Of kinds that update matrices together (update_batches.hpp): make a batch, and take what a matrix adds to it; false
  // where it goes alone.
  std::unique_ptr<UpdateBatch<Space>> (*batch)(const MatrixOptions&, const std::vector<BatchItem<Space>>&) = nullptr;
  bool (*declare_in_batch)(Workspace<Space>&, const MatrixOptions&, bool computes_bf16, std::size_t rows,
                           std::size_t cols) = nullptr;
};

template <class Optimizer, class Space>
MatrixMaker<Space> matrix_maker() {
  MatrixMaker<Space> maker;
  maker.make = [](const Space& exec, const MatrixOptions& options,
                  const MatrixShape& shape) -> std::unique_ptr<MatrixOptimizer<Space>> {
    return std::make_unique<Optimizer>(exec, options, shape);
  };
  maker.declare_scratch = &Optimizer::declare_scratch;
  if constexpr (requires { typename Optimizer::Batch; }) {
    using Batch = typename Optimizer::Batch;
    maker.batch = [](const MatrixOptions& options,
                     const std::vector<BatchItem<Space>>& items) -> std::unique_ptr<UpdateBatch<Space>> {
      return std::make_unique<Batch>(options, items);
    };
    maker.declare_in_batch = &Batch::declare_scratch;
  }
  return maker;
}

template <class Space>
void add_matrix_maker(const std::string& kind, MatrixMaker<Space>);

// Registers Optimizer<Space>, constructed from (exec, options, shape), on every space of this build; its static
// declare_scratch(workspace, options, rows, cols) takes of a workspace what an update takes of the stream's, by the
// same structs (kernels/blas/workspace.hpp), in frames that give it back. A type Optimizer<Space>::Batch, constructed
// from (options, items), is of matrices that are updated together. Call it at the start of main: pointers into
// the table become invalid, and nobody may read it meanwhile.
template <template <class Space> class Optimizer>
void register_matrix_kind(MatrixKind kind) {
  kind.checks.insert(kind.checks.begin(), require_skew_updates);
  add_matrix_kind(kind);
#define SESTINA_ADD_MAKER(Space) add_matrix_maker<Space>(kind.name, matrix_maker<Optimizer<Space>, Space>());
  SESTINA_INSTANTIATE_LANES(SESTINA_ADD_MAKER)
#undef SESTINA_ADD_MAKER
}

}  // namespace sestina
