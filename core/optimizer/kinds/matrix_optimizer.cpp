#include "core/optimizer/kinds/lane_scratch.hpp"
#include "core/optimizer/kinds/register_kind.hpp"
#include "core/optimizer/kinds/skew_blocks.hpp"

namespace sestina {

// Defined in <identifier>.cpp for every space.
#define SESTINA_DECLARE_MAKER(id)                                                                            \
  template <class Space>                                                                                     \
  std::unique_ptr<MatrixOptimizer<Space>> make_##id(const Space&, const MatrixOptions&, const MatrixShape&); \
  template <class Space>                                                                                     \
  std::size_t scratch_##id(const MatrixOptions&, std::size_t rows, std::size_t cols);
SESTINA_MATRIX_KINDS(SESTINA_DECLARE_MAKER)

namespace {

std::string deck_name(std::string identifier) {
  for (char& c : identifier)
    if (c == '_') c = '-';
  return identifier;
}

// Of the kinds that a program adds when it starts.
template <class Space>
std::map<std::string, AddedMatrix<Space>>& added_makers() {
  static std::map<std::string, AddedMatrix<Space>> makers;
  return makers;
}

}  // namespace

template <class Space>
void add_matrix_maker(const std::string& kind, AddedMatrix<Space> added) {
  added_makers<Space>()[kind] = std::move(added);
}

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer(const Space& exec, const MatrixOptions& options,
                                                              const MatrixShape& shape) {
#define SESTINA_TRY_MAKER(id) \
  if (options.kind == deck_name(#id)) return make_##id<Space>(exec, options, shape);
  SESTINA_MATRIX_KINDS(SESTINA_TRY_MAKER)
  const auto added = added_makers<Space>().find(options.kind);
  if (added != added_makers<Space>().end()) return added->second.make(exec, options, shape);
  fail(ExitCode::internal, "no matrix optimizer \"{}\"", options.kind);
}

template <class Space>
std::size_t scratch_bytes(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
#define SESTINA_TRY_SCRATCH(id) \
  if (options.kind == deck_name(#id)) return scratch_##id<Space>(options, rows, cols);
  SESTINA_MATRIX_KINDS(SESTINA_TRY_SCRATCH)
  const auto added = added_makers<Space>().find(options.kind);
  if (added != added_makers<Space>().end()) return added->second.scratch_bytes(options, rows, cols);
  fail(ExitCode::internal, "no matrix optimizer \"{}\"", options.kind);
}

std::size_t host_scratch_bytes(const MatrixOptions& options, const MatrixPart& part) {
  const auto rows = static_cast<std::size_t>(part.rows), cols = static_cast<std::size_t>(part.cols);
  return scratch_bytes<Serial>(options, rows, cols) + (part.skew ? skew_scratch_bytes<Serial>(rows) : 0);
}

#define SESTINA_MAKE(Space)                                                                                         \
  template std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer<Space>(const Space&, const MatrixOptions&, \
                                                                                const MatrixShape&);                \
  template std::size_t scratch_bytes<Space>(const MatrixOptions&, std::size_t, std::size_t);                        \
  template void add_matrix_maker<Space>(const std::string&, AddedMatrix<Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_MAKE)

}  // namespace sestina
