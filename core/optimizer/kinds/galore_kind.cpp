// GaLore (arXiv 2403.03507): Adam on the gradient projected on its leading singular vectors.
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

RefreshNeeds galore_needs(const MatrixOptions&, std::int64_t rows, std::int64_t cols);

MatrixKind galore_kind() {
  MatrixKind kind = low_rank_kind("galore", 0.25, "svd");
  kind.refresh_needs = galore_needs;
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    const std::int64_t block = options.state_bits == 8 ? options.state_block : 0;
    std::vector<FieldSize> fields = low_rank_fields(options, rows, cols, block);
    add_jobs(fields, options, {{"snapshot", DType::f32, rows, cols}});
    return fields;
  };
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {  // refresh: Gram, eigenvectors
    const LowRank low = low_rank_of(options, rows, cols);
    const UpdateWork gram = side_work({!low.right, low.right}, rows, cols, 1, all_eigenvectors);
    return UpdateWork{projection_work(low, rows, cols), gram.update + gram.refresh};
  };
  return kind;
}

}  // namespace sestina
