#include "core/optimizer/base/own_blocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::string_view block_word = "block_", share_word = "/share_";

const FieldSize* find_named(const std::vector<FieldSize>& fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const FieldSize& f) { return f.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

std::vector<FieldSize> fields_of_shape(const OptimizerOptions& optimizer, std::int64_t rows, std::int64_t cols) {
  return find_matrix_kind(optimizer.matrix->kind)->state(*optimizer.matrix, rows, cols);
}

// Returns "<i>_<j>" of "block_<i>_<j>.<name>"; "": it is of no block.
std::string_view number_of(std::string_view field) {
  const std::size_t dot = field.find('.');
  return field.starts_with(block_word) && dot != field.npos ? field.substr(block_word.size(), dot - block_word.size())
                                                            : std::string_view();
}

// Returns the prefix of a block's fields in the state of the whole.
std::string prefix_of(const MatrixPart& block) {
  return fmt::format("{}{}.", block_word, block.name.substr(block.name.rfind(share_word) + share_word.size()));
}

// The place of a block's field in the state of the whole.
enum class Part { block, slab, entries, counter, none };
Part part_of_whole(const FieldSize& own, const std::vector<FieldSize>& whole, const MatrixPart& block,
                   std::size_t blocks) {
  const auto same_size = [&](const FieldSize* f) { return f->rows == own.rows && f->cols == own.cols; };
  if (const FieldSize* f = find_named(whole, prefix_of(block) + own.name))
    return same_size(f) ? Part::block : Part::none;
  const FieldSize* f = find_named(whole, own.name);
  if (f == nullptr) return Part::none;
  if (own.dtype == DType::f32) return own.rows == block.rows && own.cols == block.cols ? Part::slab : Part::none;
  if (same_size(f)) return Part::counter;
  return f->rows == own.rows * static_cast<std::int64_t>(blocks) ? Part::entries : Part::none;
}

// Returns the blocks by the square fields of their sides.
std::vector<MatrixPart> blocks_by_fields(const std::string& name, const std::vector<FieldSize>& fields) {
  std::vector<MatrixPart> blocks;
  for (const FieldSize& field : fields) {
    const std::string_view number = number_of(field.name);
    if (number.empty() || field.rows != field.cols) continue;
    std::string of = fmt::format("{}{}{}", name, share_word, number);
    if (blocks.empty() || blocks.back().name != of) {
      const bool known = std::any_of(blocks.begin(), blocks.end(), [&](const MatrixPart& b) { return b.name == of; });
      if (known) continue;
      blocks.push_back({std::move(of), 0, 0, 0});
    }
    if (field.name.ends_with("_left")) blocks.back().rows = field.rows;
    if (field.name.ends_with("_right")) blocks.back().cols = field.rows;
  }
  return blocks;
}

// Places blocks that follow one another row by row. Returns false where they do not fill the tensor.
bool place_blocks(const TensorSpec& spec, std::vector<MatrixPart>& blocks) {
  std::int64_t row = 0, col = 0;
  for (MatrixPart& block : blocks) {
    block.row_begin = row;
    block.col_begin = col;
    block.cut_cols = block.cols < spec.cols;
    col += block.cols;
    if (block.rows == 0 || block.cols == 0 || col > spec.cols || row + block.rows > spec.rows) return false;
    if (col < spec.cols) continue;
    row += block.rows;
    col = 0;
  }
  return row == spec.rows && col == 0;
}

// Returns whether the block by itself has the fields that it has in the whole.
bool has_same_fields(const std::vector<FieldSize>& whole, const MatrixPart& block, std::size_t blocks,
                     const OptimizerOptions& optimizer) {
  const std::vector<FieldSize> own = fields_of_shape(optimizer, block.rows, block.cols);
  const std::string prefix = prefix_of(block);
  return std::all_of(own.begin(), own.end(),
                     [&](const FieldSize& f) { return part_of_whole(f, whole, block, blocks) != Part::none; }) &&
         std::all_of(whole.begin(), whole.end(), [&](const FieldSize& f) {
           return !f.name.starts_with(prefix) || find_named(own, f.name.substr(prefix.size())) != nullptr;
         });
}

}  // namespace

std::vector<MatrixPart> own_blocks(const TensorSpec& spec, const OptimizerOptions& optimizer) {
  if (!is_matrix_optimized(spec, optimizer) || spec.is_packed() || is_by_head(spec, optimizer) ||
      optimizer.matrix->rules.any())
    return {};
  const std::vector<FieldSize> whole = fields_of_shape(optimizer, spec.rows, spec.cols);
  std::vector<MatrixPart> blocks = blocks_by_fields(spec.name, whole);
  if (!place_blocks(spec, blocks)) return {};
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;  // four at most
  for (const MatrixPart& block : blocks)
    if (shapes.insert({block.rows, block.cols}).second && !has_same_fields(whole, block, blocks.size(), optimizer))
      return {};
  return blocks;
}

void become_part_of_whole(StateField& field, const TensorSpec& whole, const MatrixPart& block, std::size_t number,
                          const OptimizerOptions& optimizer) {
  const std::string name = field.path.substr(field.path.rfind('/') + 1);
  const std::vector<FieldSize> all = fields_of_shape(optimizer, whole.rows, whole.cols),
                               own = fields_of_shape(optimizer, block.rows, block.cols);
  const FieldSize* size = find_named(own, name);
  SESTINA_REQUIRE(size != nullptr, "{} is no field of {}", field.path, block.name);
  const std::string path = "/optimizer/" + whole.name + "/";
  const FieldSize* in_whole = find_named(all, name);
  const std::int64_t blocks = in_whole != nullptr ? in_whole->rows / std::max<std::int64_t>(size->rows, 1) : 1;
  switch (part_of_whole(*size, all, block, static_cast<std::size_t>(blocks))) {
    case Part::block:
      field.path = path + prefix_of(block) + name;
      return;
    case Part::slab:
      field.path = path + name;
      field.shape = {whole.rows, whole.cols};
      field.row_begin = block.row_begin;
      field.row_end = block.row_begin + block.rows;
      if (!block.cut_cols) return;
      field.col_begin = block.col_begin;
      field.col_end = block.col_begin + block.cols;
      return;
    case Part::entries:
      field.path = path + name;
      field.shape[0] = in_whole->rows;
      field.row_begin = static_cast<std::int64_t>(number) * size->rows;
      field.row_end = field.row_begin + size->rows;
      return;
    case Part::counter:
      field.path = path + name;
      field.saved = field.saved && number == 0;
      return;
    case Part::none:
      SESTINA_REQUIRE(false, "{} is in no state of {}", field.path, whole.name);
  }
}

}  // namespace sestina
