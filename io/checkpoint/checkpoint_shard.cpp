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

// Its bytes to their place, and their digest into the piece.
void write_field(const std::string& path, const StateField& field, const FieldData& data, ManifestPiece& piece) {
  Digest64 digest;
  std::uint64_t at = piece.offset;
  const UseBytes write = [&](const void* bytes, std::size_t count) {
    digest.add(bytes, count);
    write_parts(path, {{bytes, at, count}});
    at += count;
  };
  if (field.data != nullptr || field.bytes() == 0)
    write(field.data, field.bytes());
  else
    data(field, write);
  SESTINA_REQUIRE(at == piece.offset + piece.bytes, "{}: {} bytes, got {}", field.path, piece.bytes, at - piece.offset);
  piece.xxh3_64 = digest.hex();
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
  std::vector<std::size_t> placed;  // the field of each
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (is_elsewhere(fields[i])) continue;
    tensors.push_back(place(file, fields[i], number));
    placed.push_back(i);
  }
  file.close();
  for (const bool in_memory : {false, true})
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const StateField& field = fields[placed[i]];
      if ((field.data != nullptr || field.bytes() == 0) == in_memory)
        write_field(path, field, data, tensors[i].pieces[0]);
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
