#include "io/checkpoint_shard.hpp"

#include "io/checkpoint_files.hpp"
#include "io/digest.hpp"
#include "io/hdf5_file.hpp"

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

ManifestTensor describe(const StateField& field, std::size_t file, std::uint64_t offset) {
  ManifestPiece piece{file,   field.row_begin, field.row_end,
                      offset, field.bytes(),   hex64(digest64(field.data, field.bytes()))};
  return {field.path, field.dtype, field.shape, field.version, {piece}};
}

}  // namespace

std::vector<ManifestTensor> write_shard(const std::string& path, std::size_t number,
                                        const std::vector<StateField>& fields, const RunState& run) {
  std::uint64_t total = 0;
  for (const StateField& field : fields) total += field.bytes();
  reserve_room(path, total);

  Hdf5File file = Hdf5File::create(path);
  add_run(file, run);
  std::vector<ManifestTensor> tensors;
  std::vector<FilePart> parts;
  for (const StateField& field : fields) {
    std::vector<std::int64_t> slab = field.shape;
    slab.at(0) = field.row_end - field.row_begin;
    const std::uint64_t offset = file.add_tensor(field.path, field.dtype, slab);
    tensors.push_back(describe(field, number, offset));
    parts.push_back({field.data, offset, field.bytes()});
  }
  file.close();
  write_parts(path, parts);
  return tensors;
}

void write_global(const std::string& path, const Manifest& manifest) {
  Hdf5File file = Hdf5File::create(path);
  add_run(file, manifest.run);
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::vector<VirtualPart> parts;
    for (const ManifestPiece& piece : tensor.pieces)
      parts.push_back({manifest.files[piece.file].name, piece.row_begin, piece.row_end});
    file.add_virtual(tensor.path, tensor.dtype, tensor.shape, parts);
  }
  file.close();
}

}  // namespace sestina
