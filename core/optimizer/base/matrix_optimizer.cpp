#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/skew_blocks.hpp"
#include "core/optimizer/base/stream_scratch.hpp"

namespace sestina {

namespace {

template <class Space>
std::map<std::string, MatrixMaker<Space>>& makers() {
  static std::map<std::string, MatrixMaker<Space>> all;
  return all;
}

template <class Space>
const MatrixMaker<Space>& maker_of(const std::string& kind) {
  const auto found = makers<Space>().find(kind);
  SESTINA_REQUIRE(found != makers<Space>().end(), "no matrix optimizer \"{}\"", kind);
  return found->second;
}

}  // namespace

template <class Space>
void add_matrix_maker(const std::string& kind, MatrixMaker<Space> maker) {
  makers<Space>()[kind] = maker;
}

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer(const Space& exec, const MatrixOptions& options,
                                                              const MatrixShape& shape) {
  return maker_of<Space>(options.kind).make(exec, options, shape);
}

template <class Space>
std::size_t scratch_bytes(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  return maker_of<Space>(options.kind).scratch_bytes(options, rows, cols);
}

std::size_t host_scratch_bytes(const MatrixOptions& options, const MatrixPart& part) {
  const auto rows = static_cast<std::size_t>(part.rows), cols = static_cast<std::size_t>(part.cols);
  return scratch_bytes<Serial>(options, rows, cols) + (part.skew ? skew_scratch_bytes<Serial>(rows) : 0);
}

#define SESTINA_MAKE(Space)                                                                                         \
  template std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer<Space>(const Space&, const MatrixOptions&, \
                                                                                const MatrixShape&);                \
  template std::size_t scratch_bytes<Space>(const MatrixOptions&, std::size_t, std::size_t);                        \
  template void add_matrix_maker<Space>(const std::string&, MatrixMaker<Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_MAKE)

}  // namespace sestina
