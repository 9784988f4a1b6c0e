#include "app/verbs/generation.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/base/random.hpp"

namespace sestina {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Runs the sequences of one filling of the decoder.
class DecodedBatch {
 public:
  DecodedBatch(TokenDecoder& decoder, const Generation& generation, std::vector<Sequence>& sequences, std::size_t first,
               std::size_t count, const std::function<bool(std::size_t, std::int32_t)>& emit)
      : decoder_(decoder),
        generation_(generation),
        sequences_(sequences),
        first_(first),
        count_(count),
        emit_(emit),
        sampler_(decoder.config().vocab_size, generation.hidden) {
    for (std::size_t i = 0; i < count; ++i) {
      Sequence& sequence = sequences[first + i];
      const auto room = static_cast<std::size_t>(decoder.config().max_position_embeddings);
      sequence.ids.reserve(std::min(sequence.ids.size() + static_cast<std::size_t>(generation.tokens), room));
      const std::string name = sequence.sample == 0 ? "generate" : "generate/" + std::to_string(sequence.sample);
      streams_.push_back(stream_of(generation.seed, name));
    }
    going_.reserve(count);
    tokens_.reserve(count);
  }

  void run(GenerationTimes& times) {
    const double start = seconds();
    read_prompts(times);
    const double read = seconds();
    for (int made = 1; !going_.empty(); ++made) {
      decoder_.step(static_cast<int>(going_.size()), going_.data(), tokens_.data());
      std::size_t kept = 0;
      for (std::size_t row = 0; row < going_.size(); ++row)
        if (add_token(going_[row], static_cast<int>(row), made, times)) {
          going_[kept] = going_[row];
          tokens_[kept++] = sequences_[first_ + static_cast<std::size_t>(going_[row])].ids.back();
        }
      going_.resize(kept);
      tokens_.resize(kept);
    }
    times.prompt_s += read - start;
    times.tokens_s += seconds() - read;
  }

 private:
  void read_prompts(GenerationTimes& times) {
    for (std::size_t i = 0; i < count_; ++i) decoder_.clear(static_cast<int>(i));
    std::size_t same = 0;  // the first sequence with this prompt
    std::vector<std::int32_t> prompt;
    for (std::size_t i = 0; i < count_; ++i) {
      Sequence& sequence = sequences_[first_ + i];
      times.prompt_tokens += static_cast<std::int64_t>(sequence.ids.size());
      const int at = static_cast<int>(i);
      if (i > 0 && sequence.ids == prompt) {
        decoder_.copy(static_cast<int>(same), at);  // its logits are still there
      } else {
        same = i;
        prompt = sequence.ids;
        decoder_.prefill(at, prompt.data(), static_cast<int>(prompt.size()));
      }
      if (!add_token(at, 0, 0, times)) continue;
      going_.push_back(at);
      tokens_.push_back(sequence.ids.back());
    }
  }

  // Draws the token of that number from a row of logits; returns whether the sequence goes on.
  bool add_token(int at, int row, int number, GenerationTimes& times) {
    Sequence& sequence = sequences_[first_ + static_cast<std::size_t>(at)];
    const auto end = [&](Finish finish) {
      sequence.finish = finish;
      return false;
    };
    const auto positions = static_cast<std::size_t>(decoder_.config().max_position_embeddings);
    if (sequence.ids.size() >= positions) return end(Finish::context);
    if (number >= generation_.tokens) return end(Finish::length);
    const double u = uniform(streams_[static_cast<std::size_t>(at)], static_cast<std::uint64_t>(number));
    const float* logits = decoder_.logits(row);
    if (!std::all_of(logits, logits + decoder_.config().vocab_size, [](float x) { return std::isfinite(x); }))
      fail(ExitCode::diverged, "the logits after token {} are not finite", sequence.ids.size());
    const std::int32_t token = sampler_.pick(logits, generation_.sampling, sequence.ids, u);
    const auto& ends = generation_.ends;
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) return end(Finish::end);
    sequence.ids.push_back(token);
    ++times.new_tokens;
    if (!emit_(first_ + static_cast<std::size_t>(at), token)) return end(Finish::stop);
    if (number + 1 >= generation_.tokens) return end(Finish::length);
    return sequence.ids.size() < positions || end(Finish::context);
  }

  TokenDecoder& decoder_;
  const Generation& generation_;
  std::vector<Sequence>& sequences_;
  std::size_t first_, count_;
  const std::function<bool(std::size_t, std::int32_t)>& emit_;
  Sampler sampler_;
  std::vector<std::uint64_t> streams_;
  std::vector<int> going_;  // the decoder's sequences and the tokens that they go on with
  std::vector<std::int32_t> tokens_;
};

}  // namespace

const char* name(Finish finish) {
  switch (finish) {
    case Finish::length:
      return "length";
    case Finish::end:
      return "end";
    case Finish::stop:
      return "stop";
    case Finish::context:
      return "context";
  }
  return "";
}

int decoder_capacity(const ModelConfig& config, const std::vector<Sequence>& sequences, int tokens) {
  std::int64_t capacity = 1;
  for (const Sequence& sequence : sequences) {
    const auto prompt = static_cast<std::int64_t>(sequence.ids.size());
    if (prompt > config.max_position_embeddings)
      fail(ExitCode::bad_data, "the prompt has {} tokens, the model has {} positions (max_position_embeddings)", prompt,
           config.max_position_embeddings);
    capacity = std::max(capacity, std::min<std::int64_t>(prompt + tokens, config.max_position_embeddings));
  }
  return static_cast<int>(capacity);
}

GenerationTimes generate(TokenDecoder& decoder, const Generation& generation, std::vector<Sequence>& sequences,
                         const std::function<bool(std::size_t, std::int32_t)>& emit) {
  GenerationTimes times;
  const auto width = static_cast<std::size_t>(decoder.options().sequences);
  for (std::size_t first = 0; first < sequences.size(); first += width)
    DecodedBatch(decoder, generation, sequences, first, std::min(width, sequences.size() - first), emit).run(times);
  return times;
}

}  // namespace sestina
