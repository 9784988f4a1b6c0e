// The kind `shampoo`: its row (Gupta, Koren, Singer 2018, with blocks and grafting as in Shi et al. 2023).
#include "core/optimizer/methods/shampoo/shampoo.hpp"

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/shampoo/shampoo_updates.hpp"
#include "kernels/optimizer/inverse_root.hpp"

namespace sestina {
namespace {

RefreshNeeds shampoo_needs(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const ShampooLayout layout =
      shampoo_layout(options.as<ShampooOptions>(), static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  const RefreshMethod root = ShampooRule(options).method;
  const std::size_t results = root == RefreshMethod::inverse_root_qr ? 2 : 1;  // a root, and the basis that it is in
  RefreshNeeds needs;
  auto counter = Workspace<Serial>::counter();
  const auto add = [&](std::size_t d) {
    ++needs.jobs;
    declare_packed_job(counter, root, d);
    needs.results += results * d * d * sizeof(float);
    needs.copies += bytes_of(packed_snapshot(options, "snapshot", static_cast<std::int64_t>(d)));
  };
  for (const ShampooBlock& block : layout.blocks) {
    add(block.rows);
    if (!layout.is_vector) add(block.cols);
  }
  needs.scratch = counter.peak();
  return needs;
}

MatrixKind shampoo_kind() {
  MatrixKind kind = matrix_kind<ShampooOptions>("shampoo");
  kind.refresh_every = 10;
  kind.state = shampoo_state;
  kind.stated_flops = stated_roots;
  kind.work = shampoo_work;
  kind.width_power = [](const MatrixOptions& options) {  // other sizes depend on those of gradients
    return options.as<ShampooOptions>().grafts_by_moment() ? std::optional(0.5) : std::nullopt;
  };
  kind.refresh_needs = shampoo_needs;
  kind.refresh_always = [](MatrixOptions& options) {
    auto keys = options.as<ShampooOptions>();
    keys.start_step = 0;
    keys.qr_tolerance = 0;
    options.keys = keys;
  };
  kind.keeps_skew = [](const MatrixOptions&) { return true; };
  kind.checks = {[](Deck& deck, Options& options) {
    const ShampooRule rule(*options.optimizer.matrix);
    if (rule.method == RefreshMethod::inverse_root_newton && newton_order(rule.exponent) == 0)
      deck.error("optimizer.exponent", "root = \"newton\" takes whole roots", "1, 1/2, 1/3, ...");
  }};
  return kind;
}

}  // namespace

void register_shampoo() { register_matrix_kind<Shampoo>(shampoo_kind()); }

}  // namespace sestina
