#include "core/optimizer/kinds/register_kind.hpp"

namespace sestina {

// Defined in <identifier>.cpp for every space.
#define SESTINA_DECLARE_MAKER(id) \
  template <class Space>          \
  std::unique_ptr<MatrixOptimizer<Space>> make_##id(const Space&, const MatrixOptions&, const MatrixShape&);
SESTINA_MATRIX_KINDS(SESTINA_DECLARE_MAKER)

namespace {

std::string deck_name(std::string identifier) {
  for (char& c : identifier)
    if (c == '_') c = '-';
  return identifier;
}

// Of the kinds that a program adds when it starts.
template <class Space>
std::map<std::string, MatrixMaker<Space>>& added_makers() {
  static std::map<std::string, MatrixMaker<Space>> makers;
  return makers;
}

}  // namespace

template <class Space>
void add_matrix_maker(const std::string& kind, MatrixMaker<Space> make) {
  added_makers<Space>()[kind] = std::move(make);
}

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer(const Space& exec, const MatrixOptions& options,
                                                              const MatrixShape& shape) {
#define SESTINA_TRY_MAKER(id) \
  if (options.kind == deck_name(#id)) return make_##id<Space>(exec, options, shape);
  SESTINA_MATRIX_KINDS(SESTINA_TRY_MAKER)
  const auto added = added_makers<Space>().find(options.kind);
  if (added != added_makers<Space>().end()) return added->second(exec, options, shape);
  fail(ExitCode::internal, "no matrix optimizer \"{}\"", options.kind);
}

#define SESTINA_MAKE(Space)                                                                                         \
  template std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer<Space>(const Space&, const MatrixOptions&, \
                                                                                const MatrixShape&);                \
  template void add_matrix_maker<Space>(const std::string&, MatrixMaker<Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_MAKE)

}  // namespace sestina
