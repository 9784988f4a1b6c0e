// GaLore (arXiv 2403.03507): Adam on the gradient projected on its leading singular vectors.
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

MatrixKind galore_kind() {
  const DeckRange rate{.min = 0, .max = 1, .open_max = true};
  MatrixKind kind;
  kind.name = "galore";
  kind.weight_decay = 0;
  kind.refresh_every = 200;
  kind.asynchronous = true;
  kind.keys = {
      integer_key("rank", 0),
      word_key("side", {"auto", "left", "right"}),
      number_key("scale", 0.25),
      number_key("beta1", 0.9, rate),
      number_key("beta2", 0.999, rate),
      eps_key("eps", 1e-6),
      word_key("projector", {"svd", "given"}),
      word_key("decay_order", {"after", "before"}),
  };
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    std::vector<FieldSize> fields = low_rank_fields(low_rank_of(options, rows, cols), rows, cols);
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
