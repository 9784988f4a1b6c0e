#include "core/optimizer/base/paged_bytes.hpp"

#include <algorithm>

#include "core/memory/blocks.hpp"
#include "core/memory/state_field.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/sides.hpp"

namespace sestina {

bool pages_moments(const TensorSpec& spec, const OptimizerOptions& options, MemorySpace memory) {
  return leaves(memory, options.state_tier) && (!spec.is_vector() || spec.is_packed());
}

std::size_t element_piece(const FieldSize& field) {
  const bool coded = field.name.ends_with("_codes") || field.name.ends_with("_scales");
  return coded ? std::max<std::size_t>(1, bytes_of(field)) : field_piece_bytes;
}

namespace {

// Adds the bytes that one field of a matrix takes, and those that move: a factor is read and written in every update; a
// result is read, and written when it is new, and so is its copy, which nobody reads on a device.
void add_paged(const MatrixOptions& options, MemorySpace memory, const FieldSize& field, PagedBytes& sum,
               PagedBytes& matrix) {
  const bool on_device = memory == MemorySpace::device;
  const std::size_t bytes = bytes_of(field), place = whole_pages(bytes);
  const double every = static_cast<double>(options.refresh_every);
  const bool is_result = field.use == FieldUse::result, is_copy = field.use == FieldUse::refresh,
             is_moment = field.use == FieldUse::moment;
  if (is_result && !on_device && options.refresh_staleness > 0 && options.pages(snapshot_of(field.name), memory)) {
    sum.results += bytes;  // of the result under way
    sum.nvme += place;
    sum.places += place;
    matrix.refresh += place;
    sum.nvme_moved += 2 * static_cast<double>(place) / every;
  }
  if (!leaves(memory, field.tier)) {
    if (!is_moment) sum.resident += bytes;
    return;
  }
  sum.state += bytes;
  const std::size_t in_use = on_device ? whole_device_pages(bytes) : place;
  (is_copy ? matrix.refresh : matrix.update) += in_use;
  sum.places += in_use;
  const double copy_uses = (on_device ? 1 : 2) / every;
  const bool unified = field.tier == Tier::unified;  // whatever comes goes back, changed or not
  const double uses = is_copy ? (unified ? 2 / every : copy_uses) : is_result && !unified ? 1 + 1 / every : 2;
  if (on_device) sum.link_moved += static_cast<double>(bytes) * uses;
  if (field.tier != Tier::nvme) {
    sum.host += place;
    return;
  }
  sum.on_disk += bytes;
  sum.nvme += place;
  sum.largest = std::max(sum.largest, bytes);
  sum.nvme_moved += static_cast<double>(place) * uses;
}

}  // namespace

void PagedBytes::add(const PagedBytes& other) {
  state += other.state;
  on_disk += other.on_disk;
  resident += other.resident;
  results += other.results;
  nvme += other.nvme;
  host += other.host;
  places += other.places;
  nvme_moved += other.nvme_moved;
  link_moved += other.link_moved;
  largest = std::max(largest, other.largest);
  piece = std::max(piece, other.piece);
  update = std::max(update, other.update);
  refresh = std::max(refresh, other.refresh);
}

PagedBytes paged_bytes(const TensorSpec& spec, const OptimizerOptions& options, MemorySpace memory) {
  PagedBytes sum;
  if (!options.matrix || !options.pages_any(memory) || !spec.trainable || !is_matrix_optimized(spec, options))
    return sum;
  for (const MatrixPart& part : matrix_parts(spec, options)) {
    PagedBytes matrix;
    const auto rows = static_cast<std::size_t>(part.rows), cols = static_cast<std::size_t>(part.cols);
    for (const FieldSize& field : fields_of(*options.matrix, rows, cols))
      if (field.use != FieldUse::always) add_paged(*options.matrix, memory, field, sum, matrix);
    sum.update = std::max(sum.update, matrix.update);
    sum.refresh = std::max(sum.refresh, matrix.refresh);
  }
  return sum;
}

PagedBytes paged_bytes(const TensorSpec& spec, std::int64_t rows, std::int64_t cols, const OptimizerOptions& options,
                       std::size_t accumulate_width, MemorySpace memory) {
  PagedBytes sum;
  if (!pages_moments(spec, options, memory)) return sum;
  const bool on_device = memory == MemorySpace::device, in_host = options.state_tier != Tier::nvme;
  for (const FieldSize& field : adamw_fields(spec, rows, cols, options, accumulate_width)) {
    const std::size_t bytes = bytes_of(field), piece = element_piece(field);
    const auto in_use = [&](std::size_t n) { return on_device ? whole_device_pages(n) : whole_pages(n); };
    std::size_t place = 0;  // in the store
    for (std::size_t begin = 0; begin < bytes; begin += piece) {
      place += whole_pages(std::min(piece, bytes - begin));
      sum.places += in_use(std::min(piece, bytes - begin));
    }
    sum.state += bytes;
    sum.piece += in_use(std::min(piece, bytes));
    if (on_device) sum.link_moved += 2 * static_cast<double>(bytes);
    (in_host ? sum.host : sum.nvme) += place;
    if (in_host) continue;
    sum.on_disk += bytes;
    sum.largest = std::max(sum.largest, std::min(piece, bytes));
    sum.nvme_moved += 2 * static_cast<double>(place);
  }
  return sum;
}

}  // namespace sestina
