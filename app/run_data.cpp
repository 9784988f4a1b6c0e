#include "app/run_data.hpp"

namespace sestina {

std::unique_ptr<Tokenizer> open_tokenizer(const DataOptions& data) {
  if (data.tokenizer.empty()) return nullptr;
  return std::make_unique<Tokenizer>(Tokenizer::load(data.tokenizer));
}

SampleSet open_samples(const Options& options, Split split, const Tokenizer* tokenizer) {
  return SampleSet(options.data, split, options.model.vocab_size, options.run.seed, tokenizer,
                   options.model.eos_token_id);
}

bool has_validation(const DataOptions& data) { return !data.validation.empty() || data.validation_fraction > 0; }

}  // namespace sestina
