#include "app/restore.hpp"

#include <spdlog/spdlog.h>

#include <filesystem>

#include "app/deck_layers.hpp"

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
  source.checkpoint = checkpoint_or_run;
  if (fs::is_directory(fs::path(checkpoint_or_run) / "checkpoints")) {
    source.checkpoint =
        newest_complete(checkpoint_or_run, false, [](const std::string& line) { spdlog::warn("{}", line); });
    if (source.checkpoint.empty())
      fail(ExitCode::bad_data, "-r {}: no complete checkpoint in this run directory", checkpoint_or_run);
  }
  source.deck = CheckpointReader(source.checkpoint, false).run().deck;
  return source;
}

Options options_of(const Source& source, DeckArguments layers) {
  if (!source.hf.empty()) layers.overrides.push_back("model.from_hf=" + source.hf);
  Deck deck = layered_deck(layers, source.deck, source.checkpoint);
  const Options options = Options::read(deck);
  require_one_rank(deck, options.parallel);
  deck.finish();
  return options;
}

template <class Exec, class T>
void restore(Session<Exec, T>& session, const CheckpointReader& reader, const std::vector<StateField>& fields,
             bool reset_missing) {
  std::vector<std::byte> host;
  std::size_t missing = 0;
  for (const StateField& field : fields) {
    if (!reader.has(field.path)) {
      if (!reset_missing)
        fail(ExitCode::bad_data,
             "{} is not in the checkpoint (another optimizer, or weights alone?): optimizer.on_missing = \"reset\" "
             "starts it anew, "
             "--weights-only ignores all optimizer state",
             field.path);
      ++missing;
      continue;
    }
    host.resize(field.bytes());
    reader.read(field, host.data());
    session.copy_from_host(field, host.data());
  }
  if (missing > 0)
    spdlog::warn("{} of {} state fields were not in the checkpoint and start anew", missing, fields.size());
  session.weights_changed();
}

template <class Exec, class T>
void restore_hf_weights(Session<Exec, T>& session, const std::string& folder) {
  const SafeTensors file = open_hf_weights(folder, session.config());
  std::vector<float> host;
  for (const auto& tensor : session.tensors()) {
    host.resize(static_cast<std::size_t>(tensor.spec.elements()));
    read_hf_tensor(file, tensor.spec, host.data());
    for (const StateField& field : session.model_fields())
      if (field.path == "/model/" + tensor.spec.name) session.copy_from_host(field, host.data());
  }
  session.weights_changed();
}

template <class Exec, class T>
void restore_weights(Session<Exec, T>& session, const Source& source) {
  if (!source.hf.empty()) return restore_hf_weights(session, source.hf);
  const CheckpointReader reader(source.checkpoint, false);
  restore(session, reader, session.model_fields(), false);
}

#define SESTINA_RESTORE(Exec, T)                                                                                    \
  template void restore<Exec, T>(Session<Exec, T>&, const CheckpointReader&, const std::vector<StateField>&, bool); \
  template void restore_weights<Exec, T>(Session<Exec, T>&, const Source&);                                         \
  template void restore_hf_weights<Exec, T>(Session<Exec, T>&, const std::string&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_RESTORE)

}  // namespace sestina
