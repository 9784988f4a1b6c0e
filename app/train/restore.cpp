#include "app/train/restore.hpp"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <map>

#include "app/start/deck_layers.hpp"
#include "io/store/finite.hpp"

namespace fs = std::filesystem;

namespace sestina {

Source find_source(const std::string& checkpoint_or_run, const std::string& hf) {
  Source source;
  if (!hf.empty()) {
    source.hf = fs::absolute(hf).string();
    return source;
  }
  if (!fs::is_directory(checkpoint_or_run))
    fail(ExitCode::input_missing, "-r {}: no such checkpoint folder", checkpoint_or_run);
  source.checkpoint = find_checkpoint(checkpoint_or_run, [](const std::string& line) { spdlog::warn("{}", line); });
  source.deck = CheckpointReader(source.checkpoint, false).run().deck;
  return source;
}

Options options_of(const Source& source, DeckArguments layers) {
  layers.hf = source.hf;
  for (const char* one : {"parallel.dp=1", "parallel.tp=1", "parallel.pp=1"}) layers.overrides.push_back(one);
  Deck deck = layered_deck(layers, source.deck, source.checkpoint);
  const Options options = Options::read(deck);
  require_one_rank(deck, options.parallel);
  deck.finish();
  return options;
}

template <class Exec>
void restore(const Exec& exec, const CheckpointReader& reader, const std::vector<StateField>& fields,
             bool reset_missing, ExitCode nonfinite) {
  std::vector<std::byte> host;
  std::size_t missing = 0;
  for (const StateField& field : fields) {
    if (!reader.has(field.path)) {
      if (field.optional) continue;  // it was inline: nothing is in flight
      if (!reset_missing)
        fail(ExitCode::bad_data,
             "{} is not in the checkpoint (another optimizer, or weights only?): optimizer.on_missing = \"reset\" "
             "reinitialises it, "
             "--weights-only ignores all optimizer state",
             field.path);
      ++missing;
      continue;
    }
    host.resize(field.bytes());
    reader.read(field, host.data());
    require_finite(field, host.data(), nonfinite, fmt::format("checkpoint of step {}", reader.run().step));
    copy_from_host(exec, field, host.data());
  }
  if (missing > 0)
    spdlog::warn("{} of {} state fields were not in the checkpoint and are reinitialised", missing, fields.size());
}

template <class Exec>
void restore_hf_weights(const Exec& exec, const std::vector<StateField>& fields, const ModelConfig& whole,
                        const std::string& folder) {
  const SafeTensors file = open_hf_weights(folder, whole);
  std::map<std::string, TensorSpec> specs;
  for (const TensorSpec& spec : tensor_specs(whole)) specs["/model/" + spec.name] = spec;
  std::vector<float> host, slab;
  for (const StateField& field : fields) {
    const TensorSpec& spec = specs.at(field.path);
    host.resize(static_cast<std::size_t>(spec.elements()));
    read_hf_tensor(file, spec, host.data(), folder);
    slab.clear();
    const std::int64_t first = field.has_all_columns() ? 0 : field.col_begin;
    for (std::int64_t row = field.row_begin; row < field.row_end; ++row) {
      const float* from = host.data() + row * spec.cols + first;
      slab.insert(slab.end(), from, from + field.row_elements());
    }
    copy_from_host(exec, field, slab.data());
  }
}

template <class Exec, class T>
void restore_weights(Executor<Exec, T>& executor, const Source& source) {
  if (!source.hf.empty()) {
    restore_hf_weights(executor.exec(), executor.model_fields(), executor.config(), source.hf);
  } else {
    const CheckpointReader reader(source.checkpoint, false);
    restore(executor.exec(), reader, executor.model_fields(), false, ExitCode::diverged);
  }
  executor.weights_changed();
}

#define SESTINA_RESTORE(Exec)                                                                                        \
  template void restore<Exec>(const Exec&, const CheckpointReader&, const std::vector<StateField>&, bool, ExitCode); \
  template void restore_hf_weights<Exec>(const Exec&, const std::vector<StateField>&, const ModelConfig&,            \
                                         const std::string&);
SESTINA_INSTANTIATE_SPACES(SESTINA_RESTORE)
#define SESTINA_RESTORE_WEIGHTS(Exec, T) template void restore_weights<Exec, T>(Executor<Exec, T>&, const Source&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_RESTORE_WEIGHTS)

}  // namespace sestina
