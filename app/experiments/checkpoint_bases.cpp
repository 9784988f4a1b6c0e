#include "app/experiments/checkpoint_bases.hpp"

#include <algorithm>
#include <cmath>

#include "core/optimizer/base/routing.hpp"

namespace sestina {
namespace {

// fp32 bases with n columns are orthogonal to some eps n after a QR step; a matrix that is far from that is no basis.
constexpr double most_defect = 1e-2;

// Returns how far rows are from unit length and from a right angle to the next one, which takes n^2 operations.
double defect(const std::vector<double>& q, std::size_t n) {
  double largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t next = (i + 1) % n;
    double squares = 0, product = 0;
    for (std::size_t k = 0; k < n; ++k) {
      squares += q[i * n + k] * q[i * n + k];
      product += q[i * n + k] * q[next * n + k];
    }
    const double off = std::abs(squares - 1) + (next == i ? 0 : std::abs(product));
    if (!(off <= largest)) largest = off;  // a NaN is kept
    if (std::isnan(largest)) break;
  }
  return largest;
}

// Returns an empty basis where there is none, or where it has not begun.
std::vector<double> read_basis(const CheckpointReader& reader, const std::string& path, std::int64_t n) {
  if (!reader.has(path)) return {};
  StateField field;
  field.path = path;
  field.dtype = DType::f32;
  field.shape = {n, n};
  field.row_end = n;
  std::vector<float> values(static_cast<std::size_t>(n * n));
  reader.read(field, values.data());
  if (std::all_of(values.begin(), values.end(), [](float value) { return value == 0; })) return {};
  std::vector<double> basis(values.begin(), values.end());
  const double wrong = defect(basis, static_cast<std::size_t>(n));
  if (!(wrong < most_defect))
    fail(ExitCode::bad_data, "{}: no orthogonal basis, its rows are off by {:.2g}", path, wrong);
  return basis;
}

}  // namespace

std::vector<RotatedCoordinates> read_bases(const CheckpointReader& reader, const std::vector<TensorSpec>& specs,
                                           const OptimizerOptions& optimizer) {
  std::vector<RotatedCoordinates> all;
  std::size_t begin = 0;
  const auto add = [&](const MatrixPart& part, std::int64_t row_stride) {
    const std::string path = "/optimizer/" + part.name;
    RotatedCoordinates m{begin + static_cast<std::size_t>(part.row_begin * row_stride + part.col_begin),
                         static_cast<std::size_t>(part.rows),
                         static_cast<std::size_t>(part.cols),
                         read_basis(reader, path + "/basis_left", part.rows),
                         read_basis(reader, path + "/basis_right", part.cols),
                         static_cast<std::size_t>(row_stride)};
    if (!m.left.empty() || !m.right.empty()) all.push_back(std::move(m));
  };
  for (const TensorSpec& spec : specs) {
    if (is_matrix_optimized(spec, optimizer))
      for (const MatrixPart& part : matrix_parts(spec, optimizer)) add(part, spec.cols);
    begin += static_cast<std::size_t>(spec.elements());
  }
  return all;
}

}  // namespace sestina
