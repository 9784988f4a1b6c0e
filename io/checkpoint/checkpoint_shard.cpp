#include "io/checkpoint/checkpoint_shard.hpp"

#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "io/checkpoint/slab.hpp"
#include "io/store/digest.hpp"

namespace sestina {
namespace {

// The manifest is what a resume reads; these are for people with h5py.
void add_run(Hdf5File& file, const RunState& run) {
  file.add_integer("/run/step", static_cast<std::uint64_t>(run.step));
  file.add_integer("/run/sample", run.sample);
  file.add_integer("/run/tokens", run.tokens);
  file.add_integer("/run/seed", run.seed);
  file.add_number("/run/loss", run.loss);
  file.add_text("/run/deck", run.deck);
}

// Where the field will lie; its digest comes with its data.
ManifestTensor place(Hdf5File& file, const StateField& field, std::size_t number) {
  const Slab slab = slab_of(field, field.shape);
  ManifestPiece piece;
  piece.file = number;
  piece.row_begin = slab.row_begin;
  piece.row_end = slab.row_end;
  if (slab.cols() != columns_of(field.shape)) {
    piece.col_begin = slab.col_begin;
    piece.col_end = slab.col_end;
  }
  piece.offset = file.add_tensor(field.path, field.dtype, shape_of(slab, field.shape));
  piece.bytes = field.bytes();
  return {field.path, field.dtype, field.shape, field.version, {std::move(piece)}};
}

// Nothing to write: the tensor has elements, but this rank holds none of them.
bool is_elsewhere(const StateField& field) { return field.bytes() == 0 && !is_empty(field.shape); }

}  // namespace

std::string shard_name(std::int64_t rank) { return fmt::format("shard_{:05}.h5", rank); }

std::vector<ManifestTensor> write_shard(const std::string& path, std::size_t number,
                                        const std::vector<StateField>& fields, const RunState& run,
                                        const FieldData& data) {
  std::uint64_t total = 0;
  for (const StateField& field : fields) total += field.bytes();
  reserve_room(path, total);

  Hdf5File file = Hdf5File::create(path);
  add_run(file, run);
  std::vector<ManifestTensor> tensors;
  std::vector<const StateField*> placed;
  for (const StateField& field : fields) {
    if (is_elsewhere(field)) continue;
    tensors.push_back(place(file, field, number));
    placed.push_back(&field);
  }
  file.close();
  for (std::size_t i = 0; i < placed.size(); ++i) {
    ManifestPiece& piece = tensors[i].pieces[0];
    const void* bytes = data && piece.bytes > 0 ? data(*placed[i]) : placed[i]->data;
    piece.xxh3_64 = hex64(digest64(bytes, piece.bytes));
    write_parts(path, {{bytes, piece.offset, piece.bytes}});
  }
  return tensors;
}

void write_global(const std::string& path, const Manifest& manifest) {
  Hdf5File file = Hdf5File::create(path);
  add_run(file, manifest.run);
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::vector<VirtualPart> parts;
    for (const ManifestPiece& piece : tensor.pieces)
      parts.push_back({manifest.files[piece.file].name, slab_of(piece, tensor.shape)});
    file.add_virtual(tensor.path, tensor.dtype, tensor.shape, parts);
  }
  file.close();
}

}  // namespace sestina
