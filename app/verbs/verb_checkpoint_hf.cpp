// `sestina checkpoint export | import`: copies between checkpoints and Hugging Face folders.
#include <spdlog/spdlog.h>

#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/command/verbs.hpp"
#include "app/start/kokkos_session.hpp"
#include "app/start/run_deck.hpp"
#include "app/start/run_dir.hpp"
#include "app/train/dense_reader.hpp"
#include "app/train/run_data.hpp"
#include "core/deck/model_config.hpp"
#include "core/deck/model_experts.hpp"
#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/hf/hf_companions.hpp"
#include "io/hf/hf_model.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

StateField weight_field(const TensorSpec& spec) {
  StateField field;
  field.path = "/model/" + spec.name;
  field.shape =
      spec.is_vector() ? std::vector<std::int64_t>{spec.rows} : std::vector<std::int64_t>{spec.rows, spec.cols};
  field.row_end = spec.rows;
  return field;
}

ModelConfig model_of(const CheckpointReader& reader, const std::string& checkpoint, std::string& tokenizer) {
  Deck deck;
  deck.add_text(reader.run().deck, checkpoint + "/manifest.json", "");
  Options options = Options::read(deck);
  deck.finish();
  take_companions(options, {}, checkpoint);
  if (tokenizer.empty()) {
    tokenizer = options.data.tokenizer;
    if (!tokenizer.empty() && !fs::exists(tokenizer)) {
      spdlog::warn("{}: the tokenizer of the deck does not exist and is not exported", tokenizer);
      tokenizer.clear();
    }
  }
  ModelConfig model = options.model;
  if (!tokenizer.empty()) {
    const Tokenizer known = Tokenizer::load(tokenizer);
    name_special_tokens({.tokenizer = &known,
                         .tokenizer_path = tokenizer,
                         .folder = hf_companion_folder(checkpoint, options.model.from_hf),
                         .model = &model,
                         .begin_token = options.data.begin_token,
                         .end_token = options.data.end_token},
                        model);
  }
  return model;
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }  // JSON's strings are TOML's too

// Returns the deck to store: the deck as given (or only the model, if none is), with the model as config.json has it. A
// deck that says another model is refused.
std::string import_deck(const DeckArguments& arguments, const std::string& hf, const ModelConfig& config,
                        const std::string& tokenizer) {
  const bool given = !arguments.empty();
  const bool from_hf =
      given && layered_deck(arguments).has("model.from_hf");  // says all of the model; no other key of it may be given
  Deck deck = layered_deck(arguments, from_hf ? "" : model_section(config), hf + "/config.json");
  if (!tokenizer.empty() && (!deck.has("data.tokenizer") || deck.from_file("data.tokenizer")))
    deck.add_override("data.tokenizer=" + tokenizer);
  const Options options = Options::read(deck);
  deck.finish();
  require_byte_vocabulary(options);
  ModelConfig said = options.model;
  said.bos_token_id = config.bos_token_id;  // a deck does not say these
  said.eos_token_id = config.eos_token_id;
  said.pad_token_id = config.pad_token_id;
  if (said.to_hf_json() != config.to_hf_json())
    fail(ExitCode::bad_data, "{}/config.json does not match [model] of the deck", hf);
  record_model(deck, options.model);
  if (given) return deck.dump();
  return model_section(config) + (tokenizer.empty() ? "" : fmt::format("[data]\ntokenizer = {}\n", quoted(tokenizer)));
}

}  // namespace

int run_checkpoint_export(const CheckpointExportArguments& arguments) {
  const std::string checkpoint =
      find_checkpoint(arguments.checkpoint, [](const std::string& line) { spdlog::warn("{}", line); });
  const CheckpointReader reader(checkpoint, false);
  const std::string which = field_of_weights(reader, arguments.weights);
  std::string tokenizer = arguments.tokenizer;
  const ModelConfig config = model_of(reader, checkpoint, tokenizer);
  const fs::path output = arguments.output;
  std::error_code error;
  if (fs::exists(output / "config.json"))
    fail(ExitCode::cannot_create, "{}: already contains a model", arguments.output);
  fs::create_directories(output, error);
  if (error) fail(ExitCode::cannot_create, "{}: cannot be created: {}", arguments.output, error.message());

  std::optional<KokkosSession> kokkos;  // started only for weights that must be merged
  if (find_weight_form(config.linear) != nullptr) kokkos.emplace(0, std::vector<std::string>{});
  const DenseReader dense(reader, which);
  std::vector<std::vector<float>> weights;
  std::vector<HfTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(dense_model(config))) {
    weights.emplace_back(static_cast<std::size_t>(spec.elements()));
    dense.read(spec, weights.back().data());
    tensors.push_back({spec, weights.back().data()});
  }
  write_hf_model(arguments.output, config, tensors, arguments.bf16, tokenizer);
  if (arguments.tokenizer.empty()) write_hf_companions(arguments.output, reader.companions());
  fmt::print("{}: step {}, {} tensors, {} parameters as {}{}\n", arguments.output, reader.run().step, tensors.size(),
             parameter_count(config), arguments.bf16 ? "bf16" : "fp32",
             which.empty() ? "" : fmt::format(", weights \"{}\"", which));
  if (const std::string difference = mixture_difference(config); !difference.empty())
    fmt::print("transformers has no class for this model ({}): sestina alone reads the folder\n", difference);
  const std::string difference = gpt2_difference(config);
  if (config.family == Family::gpt)
    fmt::print("{}\n", difference.empty() ? "transformers loads it as GPT-2 (GPT2LMHeadModel)"
                                          : fmt::format("transformers has no class for this model ({}): sestina alone "
                                                        "reads the folder",
                                                        difference));
  if (tokenizer.empty())
    fmt::print("no tokenizer.json is written: the model reads bytes, or give one with --tokenizer\n");
  return static_cast<int>(ExitCode::done);
}

int run_checkpoint_import(const CheckpointImportArguments& arguments) {
  const ModelConfig config = read_hf_config(arguments.hf);
  const SafeTensors file = open_hf_weights(arguments.hf, config);
  RunState run;
  const fs::path run_folder = fs::absolute(arguments.run_dir).lexically_normal();
  const bool has_tokenizer = fs::exists(fs::path(arguments.hf) / "tokenizer.json");
  run.deck =
      import_deck(arguments.deck, arguments.hf, config, has_tokenizer ? (run_folder / "tokenizer.json").string() : "");
  run.instruction_set = instruction_set();
  run.loss = std::numeric_limits<double>::quiet_NaN();  // the loss is not known

  std::vector<StateField> fields;
  std::map<std::string, TensorSpec> specs;
  for (const TensorSpec& spec : tensor_specs(dense_model(config))) {
    fields.push_back(weight_field(spec));
    fields.back().on_device = true;  // the copy below fetches it from the file
    specs[fields.back().path] = spec;
  }
  const auto fetch = [&](const StateField& field, void* to) {
    read_hf_tensor(file, specs.at(field.path), static_cast<float*>(to), arguments.hf);
  };
  Snapshot snapshot;
  take_snapshot(fields, run, fetch, snapshot);  // reads all before anything is written

  const RunDir run_dir(arguments.run_dir);
  if (!list_checkpoints(arguments.run_dir).empty())
    fail(ExitCode::cannot_create, "{}: already contains checkpoints", arguments.run_dir);
  if (has_tokenizer) copy_tokenizer((fs::path(arguments.hf) / "tokenizer.json").string(), run_folder.string());
  CheckpointWriter writer(arguments.run_dir, CheckpointOptions{});
  writer.carry(read_hf_companions(arguments.hf));
  writer.slot() = std::move(snapshot);
  writer.save();
  writer.wait();
  const CheckpointWriter::Event event = writer.take_events().at(0);
  if (!event.error.empty()) fail(ExitCode::io_error, "{}", event.error);
  run_dir.write_deck(run.deck);
  fmt::print("{}: {} tensors, {} parameters, no optimizer state\n", event.path, fields.size(), parameter_count(config));
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina
