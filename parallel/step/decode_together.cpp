#include "parallel/step/decode_together.hpp"

#include <algorithm>
#include <vector>

namespace sestina {
namespace {

// A call of a decoder as it travels; numbers of it that have no fixed count follow in a message of their own.
struct DecoderCall {
  enum What : std::int32_t { prefill, step, copy, clear, end } what = end;
  std::int32_t first = 0, second = 0;
};

std::vector<std::int32_t> room_for_numbers(const DecoderOptions& options) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(std::max(options.capacity, 2 * options.sequences)));
}

// The decoder of the first rank, whose calls are made on all.
class LeadingDecoder final : public TokenDecoder {
 public:
  LeadingDecoder(TokenDecoder& own, Communicator& ranks)
      : own_(own), ranks_(ranks), numbers_(room_for_numbers(own.options())) {}

  void prefill(int sequence, const std::int32_t* tokens, int count) override {
    SESTINA_REQUIRE(0 < count && count <= options().capacity, "{} tokens, room for {}", count, options().capacity);
    std::copy_n(tokens, count, numbers_.begin());
    tell({DecoderCall::prefill, sequence, count}, count);
    own_.prefill(sequence, tokens, count);
  }
  void step(int n, const int* sequences, const std::int32_t* tokens) override {
    SESTINA_REQUIRE(0 <= n && n <= options().sequences, "{} of {} sequences", n, options().sequences);
    std::copy_n(tokens, n, std::copy_n(sequences, n, numbers_.begin()));
    tell({DecoderCall::step, n}, 2 * n);
    own_.step(n, sequences, tokens);
  }
  const float* logits(int row) override { return own_.logits(row); }
  void copy(int from, int to) override {
    tell({DecoderCall::copy, from, to});
    own_.copy(from, to);
  }
  void clear(int sequence) override {
    tell({DecoderCall::clear, sequence});
    own_.clear(sequence);
  }
  void end() { tell({DecoderCall::end}); }
  const ModelConfig& config() const override { return own_.config(); }
  const DecoderOptions& options() const override { return own_.options(); }

 private:
  void tell(DecoderCall call, int numbers = 0) {
    ranks_.broadcast(&call, sizeof call, 0);
    if (numbers > 0) ranks_.broadcast(numbers_.data(), static_cast<std::size_t>(numbers) * sizeof numbers_[0], 0);
  }

  TokenDecoder& own_;
  Communicator& ranks_;
  std::vector<std::int32_t> numbers_;
};

// Makes the calls of the first rank until it ends.
void follow_decoder(TokenDecoder& own, Communicator& ranks) {
  std::vector<std::int32_t> numbers = room_for_numbers(own.options());
  const auto hear = [&](int count) {
    ranks.broadcast(numbers.data(), static_cast<std::size_t>(count) * sizeof numbers[0], 0);
  };
  for (DecoderCall call;;) {
    ranks.broadcast(&call, sizeof call, 0);
    switch (call.what) {
      case DecoderCall::prefill:
        hear(call.second);
        own.prefill(call.first, numbers.data(), call.second);
        break;
      case DecoderCall::step:
        hear(2 * call.first);
        own.step(call.first, numbers.data(), numbers.data() + call.first);
        break;
      case DecoderCall::copy:
        own.copy(call.first, call.second);
        break;
      case DecoderCall::clear:
        own.clear(call.first);
        break;
      case DecoderCall::end:
        return;
    }
  }
}

}  // namespace

void decode_together(TokenDecoder& own, Communicator& ranks, const std::function<void(TokenDecoder&)>& generate) {
  if (ranks.size() == 1) return generate(own);
  if (ranks.rank() > 0) return follow_decoder(own, ranks);
  LeadingDecoder leading(own, ranks);
  try {
    generate(leading);
  } catch (...) {
    leading.end();
    throw;
  }
  leading.end();
}

}  // namespace sestina
