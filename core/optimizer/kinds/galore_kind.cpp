// GaLore (arXiv 2403.03507): Adam on the gradient projected on its leading singular vectors.
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

namespace {

// What core/optimizer/methods/lazy_period.hpp keeps.
void add_lazy_fields(std::vector<FieldSize>& fields, const LowRank& low, std::int64_t rows, std::int64_t cols) {
  fields.push_back({"first_vector", DType::f32, low.right ? cols : rows, 1});
  fields.push_back({"cosines", DType::i64, lazy_window, 1});
  fields.push_back({"refreshes", DType::i64, 1, 1});
  fields.push_back({"doublings", DType::i64, 1, 1});
}

}  // namespace

RefreshNeeds galore_needs(const MatrixOptions&, std::int64_t rows, std::int64_t cols);

MatrixKind galore_kind() {
  MatrixKind kind = low_rank_kind("galore", 0.25, {"gram", "svd"});
  kind.keys.push_back(number_key("lazy_cosine", 0, {.min = 0, .max = 1}));
  kind.refresh_needs = galore_needs;
  kind.weight_group = 256;  // as Q-GaLore (arXiv 2407.08296)
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    const std::int64_t block = options.state_bits == 8 ? options.state_block : 0;
    std::vector<FieldSize> fields = low_rank_fields(options, rows, cols, block);
    if (options.number("lazy_cosine") > 0) add_lazy_fields(fields, low_rank_of(options, rows, cols), rows, cols);
    add_jobs(fields, options, {{"snapshot", DType::f32, rows, cols}});
    return fields;
  };
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    const LowRank low = low_rank_of(options, rows, cols);
    const bool whole = options.word("projector") == "svd";  // else the Gram matrix and its eigenvectors
    const UpdateWork basis = side_work({!low.right, low.right}, rows, cols, whole ? svd_products : 1,
                                       whole ? svd_vectors : all_eigenvectors);
    return UpdateWork{projection_work(low, rows, cols), basis.update + basis.refresh};
  };
  return kind;
}

}  // namespace sestina
