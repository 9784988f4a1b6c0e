// POET-X as a form of weights: a frozen base, two permutations, packed rotations of both sides (core/model/poet_x.hpp).
#include "core/layout/poet_x_form.hpp"

namespace sestina {
namespace {

std::int64_t packed(const LinearOptions& o, std::int64_t n, std::int64_t parts) {
  return turned_of(o, n, parts) * (o.block_size - 1) / 2;
}

TensorSpec frozen(TensorSpec spec, Stored stored) {
  spec.trainable = false;
  spec.stored = stored;
  spec.initial = Initial::zeros;
  return spec;
}

// Returns the phase of layer l: it merges l updates before the first one.
std::int64_t merge_phase(const LinearOptions& o, int layer) {
  return o.staggered && layer >= 0 ? layer % o.merge_every : 0;
}

TensorSpec rotation(const LinearOptions& o, const TensorSpec& dense, int part, const char* name,
                    std::int64_t elements) {
  TensorSpec spec = weight_part(dense, part, name, elements, 1, Role::vector);
  spec.initial = Initial::zeros;
  spec.skew_block = o.block_size;
  spec.lr_factor = o.lr_factor;
  spec.reset_every = o.merge_every;
  spec.reset_phase = merge_phase(o, dense.layer);
  spec.resets_early = o.merge_bound > 0;
  spec.never_decays = true;
  spec.eps_on_corrected = o.eps_on_corrected;
  spec.coded_state = o.state_bits == 8;
  return spec;
}

// Cuts base, permutation and rotation of the side at which tensor parallelism cuts the layer. The rotation of the other
// side is whole on all ranks, each of which sums its gradient over its own part of the layer, as over its heads.
void cut_with(const TensorSpec& dense, std::vector<TensorSpec>& parts) {
  if (dense.cut == TensorCut::none) return;
  const bool inputs = dense.cut == TensorCut::cols;
  const TensorCut rows = inputs ? TensorCut::rows : dense.cut;  // cut of vectors along the side
  TensorSpec &own = parts[inputs ? poet_rotation_in : poet_rotation_out],
             &whole = parts[inputs ? poet_rotation_out : poet_rotation_in];
  parts[poet_base].cut = dense.cut;
  parts[inputs ? poet_perm_in : poet_perm_out].cut = own.cut = rows;
  own.gradient_of = dense.gradient_of;
  whole.gradient_of = GradientOf::heads;
}

// Adds scales and codes of zero of a coded base. Where the base may be cut its groups divide its rows, and they lie as
// its columns do; else groups go on from row to row.
void add_groups(const LinearOptions& o, const TensorSpec& dense, std::vector<TensorSpec>& specs) {
  const std::int64_t groups = (dense.elements() + o.group_size - 1) / o.group_size;
  const bool in_rows = o.shards > 1;
  const auto part = [&](int number, const char* name, Stored stored) {
    TensorSpec spec = weight_part(dense, number, name, in_rows ? dense.rows : groups,
                                  in_rows ? dense.cols / o.group_size : 1, in_rows ? Role::matrix : Role::vector);
    if (in_rows) spec.cut = dense.cut;
    specs.push_back(frozen(spec, stored));
  };
  part(poet_scales, "scales", Stored::sum);
  part(poet_zeros, "zeros", Stored::code);
}

std::vector<TensorSpec> poet_x_parts(const LinearOptions& o, const TensorSpec& dense) {
  const std::int64_t out = dense.rows, in = dense.cols;
  const bool coded = o.variant == LinearOptions::Variant::xq;
  const ShardedSides shards = sharded_sides(o, dense.cut);
  const Stored codes = o.base_bits == 4 ? Stored::half_code : Stored::code;
  std::vector<TensorSpec> specs = {
      frozen(weight_part(dense, poet_base, coded ? "codes" : "base", out, in, Role::matrix),
             coded ? codes : Stored::compute),
      frozen(weight_part(dense, poet_perm_in, "perm_in", in, 1, Role::vector), Stored::index),
      frozen(weight_part(dense, poet_perm_out, "perm_out", out, 1, Role::vector), Stored::index),
      rotation(o, dense, poet_rotation_in, "rotation_in", packed(o, in, shards.in)),
      rotation(o, dense, poet_rotation_out, "rotation_out", packed(o, out, shards.out))};
  cut_with(dense, specs);
  if (coded) add_groups(o, dense, specs);
  if (o.residual) {
    TensorSpec spec = weight_part(dense, coded ? poet_code_residual : poet_residual, "residual", out, in, Role::matrix);
    spec.cut = dense.cut;
    specs.push_back(frozen(spec, Stored::code));
    specs.back().may_be_absent = true;  // older checkpoints have none
  }
  return specs;
}

bool fits(const LinearOptions& o, const TensorSpec& dense) {
  const ShardedSides shards = sharded_sides(o, dense.cut);
  const bool cut_groups = o.variant == LinearOptions::Variant::xq && o.shards > 1;
  return dense.rows % (shards.out * o.block_size) == 0 && dense.cols % (shards.in * o.block_size) == 0 &&
         (!cut_groups || dense.cols % (shards.in * o.group_size) == 0);
}

std::int64_t kept(const LinearOptions& o, std::int64_t out, std::int64_t) {
  return o.variant == LinearOptions::Variant::fast ? out : 0;
}

std::int64_t passed(const LinearOptions&, std::int64_t, std::int64_t in) { return in; }

// Returns the rows and columns of both sides that blocks hold. Tensor parallelism may cut one side, which has the
// shards.
std::int64_t turned_of_both(const LinearOptions& o, std::int64_t out, std::int64_t in) {
  return o.one_block ? (o.shards + 1) * o.block_size : out + in;
}

// The gradients of all blocks of both sides.
std::int64_t sums(const LinearOptions& o, std::int64_t out, std::int64_t in) {
  return turned_of_both(o, out, in) * o.block_size;
}

FormScratch poet_x_scratch(const LinearOptions& o, const FormShape& shape) {
  const PoetOptions options = poet_options(o);
  const PoetScratch scratch{shape.element, shape.accumulate};
  const std::size_t pass = scratch.pass(options, shape.rows, shape.out, shape.in);
  return {pass, pass, scratch.merge(options, shape.out, shape.in)};
}

// Returns the work of the passes in core/model/poet_x.cpp. A row goes through the base and the blocks of both sides,
// forward and back; the rotations' gradients are the diagonal blocks of a product. Blocks are made again for each pass:
// a series has two products of each block, its gradient five (kernels/model/block_rotations.hpp). Results that are not
// kept are made again.
FormWork poet_x_work(const LinearOptions& o, std::int64_t out, std::int64_t in) {
  const auto m = static_cast<double>(out), n = static_cast<double>(in), b = static_cast<double>(o.block_size);
  const auto both = static_cast<double>(turned_of_both(o, out, in));
  const double of_in = o.one_block ? both / 2 : n;  // which side has the shards is not known here
  const double inner = 2 * m * n + 2 * of_in * b, sides = 2 * both * b, series = 2 * 2 * b * b;
  const bool again = kept(o, out, in) == 0;
  FormWork work;
  work.per_row = 2 * (2 * m * n + sides) + sides + (again ? inner : 0);
  work.per_pass = 2 * series * both + (again ? series * of_in : 0);
  work.per_sum = 5 * 2 * b * b * both;
  work.per_merge = series * both + 2 * m * n * b * (o.one_block ? of_in / m + of_in / n : 2);
  return work;
}

}  // namespace

ShardedSides sharded_sides(const LinearOptions& o, TensorCut cut) {
  if (cut == TensorCut::none) return {};
  return cut == TensorCut::cols ? ShardedSides{1, o.shards} : ShardedSides{o.shards, 1};
}

std::int64_t turned_of(const LinearOptions& o, std::int64_t n, std::int64_t parts) {
  return o.one_block ? parts * o.block_size : n;
}

PoetOptions poet_options(const LinearOptions& o) {
  PoetOptions options;
  options.block = static_cast<std::size_t>(o.block_size);
  options.most = o.one_block ? static_cast<std::size_t>(o.shards) : 0;
  options.fourth = o.even ? 2 : 1;
  options.group = o.variant == LinearOptions::Variant::xq ? static_cast<std::size_t>(o.group_size) : 0;
  options.bits = o.base_bits;
  options.zero_in_range = o.zero_in_range;
  options.residual = o.residual;
  return options;
}

WeightForm poet_x_form() {
  WeightForm form;
  form.name = "poet-x";
  form.parts = poet_x_parts;
  form.fits = fits;
  form.kept = kept;
  form.passed = passed;
  form.scratch = poet_x_scratch;
  form.sums = sums;
  form.work = poet_x_work;
  form.merge_every = [](const LinearOptions& o) { return o.merge_every; };
  form.merge_phase = merge_phase;
  form.normalised = [](const LinearOptions& o) { return o.init == LinearOptions::Init::normalized; };
  return form;
}

}  // namespace sestina
