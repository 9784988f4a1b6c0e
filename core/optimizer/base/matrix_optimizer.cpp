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
void declare_update(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows, std::size_t cols,
                    bool skew) {
  const auto frame = workspace.frame();
  if (skew) SkewScratch<Space>(workspace, rows);  // held until the frame ends
  maker_of<Space>(options.kind).declare_scratch(workspace, options, rows, cols);
}

std::size_t host_scratch(const MatrixOptions& options, const MatrixPart& part) {
  const auto rows = static_cast<std::size_t>(part.rows), cols = static_cast<std::size_t>(part.cols);
  return bytes_taken<Serial>(
      [&](Workspace<Serial>& counter) { declare_update<Serial>(counter, options, rows, cols, part.skew); });
}

#define SESTINA_MAKE(Space)                                                                                         \
  template std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer<Space>(const Space&, const MatrixOptions&, \
                                                                                const MatrixShape&);                \
  template void declare_update<Space>(Workspace<Space>&, const MatrixOptions&, std::size_t, std::size_t, bool);     \
  template void add_matrix_maker<Space>(const std::string&, MatrixMaker<Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_MAKE)

}  // namespace sestina
