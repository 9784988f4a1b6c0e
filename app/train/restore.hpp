// Reads weights and state from a checkpoint or an HF folder into the stages of a rank.
#pragma once
#include <string>

#include "app/command/verbs.hpp"
#include "core/deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/hf/hf_model.hpp"
#include "parallel/step/evaluator.hpp"

namespace sestina {

// The source of a verb's model: a checkpoint (a run directory means its newest complete one) or an HF folder.
struct Source {
  std::string checkpoint, hf;  // one is set
  std::string deck;            // the checkpoint's deck, TOML
};
Source find_source(const std::string& checkpoint_or_run, const std::string& hf);
// The deck of a source, for forward passes on so many ranks: the checkpoint's own, or one whose [model] is the HF
// folder, with what the command line says in addition.
struct SourceDeck {
  Deck deck;
  Options options;
};
SourceDeck read_source_deck(const Source&, DeckArguments, int ranks);
Options options_of(const Source&, const DeckArguments&);  // for one process

// Reads fields. A field that the checkpoint lacks is an Error(bad_data), or with reset_missing keeps its values, with
// one line in the log for all of them; a value that is not finite is an Error(nonfinite). The caller calls
// weights_changed().
void restore(const Evaluator&, const CheckpointReader&, const std::vector<StateField>&, bool reset_missing,
             ExitCode nonfinite = ExitCode::bad_data);

// Reads fields of weights from a checkpoint that has them, or that has another form of them, by way of dense weights.
// whole: the model of the evaluator; weights: which ones (field_of_weights).
void restore_model(Evaluator&, const CheckpointReader&, const std::vector<StateField>&, const ModelConfig& whole,
                   ExitCode nonfinite = ExitCode::bad_data, const std::string& weights = "");

// Says in the log that biases of routers' choices start at zero, where the checkpoint has none; throws Error(bad_data)
// where it has some that the model leaves out.
void require_router_biases(const CheckpointReader&, const ModelConfig&);

// Reads the weights of a source; throws Error(diverged) for a checkpoint whose weights are not finite.
void restore_weights(Evaluator&, const Source&, const std::string& weights = "");
// Reads fields of weights ("/model/..."), slabs included, from a folder that holds the whole model.
void restore_hf_weights(Evaluator&, const std::vector<StateField>&, const ModelConfig& whole,
                        const std::string& folder);

}  // namespace sestina
