// Byte-level BPE in HF's tokenizer.json form: GPT-2, Llama-3 and Qwen patterns (PCRE2), NFC (utf8proc), added tokens,
// ignore_merges. Same ids as the `tokenizers` package. Unsupported models are Error(bad_data) that says so. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

class Tokenizer {
 public:
  static Tokenizer load(const std::string& path);                           // tokenizer.json
  static Tokenizer parse(std::string_view json, const std::string& where);  // for tests and fuzzing
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  std::vector<std::int32_t> encode(
      std::string_view utf8) const;  // special tokens in the text are recognised; thread-safe
  // Many texts on `threads` threads. A long text is encoded in parts where it can be cut without changing an id, so
  // that threads share it and memory next to the text is that of a batch; else whole. The sink gets the ids of all
  // parts in order, `last` with the last of each text.
  using IdSink = std::function<void(const std::vector<std::int32_t>& ids, bool last)>;
  struct EncodeSizes {
    std::size_t part = 1U << 17, batch = 1U << 24;  // bytes of text
    std::function<void()> poll = {};                // called before each batch
  };
  void encode(const std::vector<std::string_view>& texts, int threads, const IdSink& sink,
              const EncodeSizes& sizes) const;
  std::vector<std::vector<std::int32_t>> encode(const std::vector<std::string_view>& texts, int threads) const;
  std::string decode(const std::int32_t* ids, std::size_t count, bool skip_special) const;
  // The same as it comes: bytes of a character may be missing, or stand alone. decode() repairs them.
  std::string decode_bytes(const std::int32_t* ids, std::size_t count, bool skip_special) const;
  std::int64_t vocab_size() const;                   // largest id + 1
  std::int64_t id_of(std::string_view token) const;  // -1 when there is none
  bool has(std::int64_t id) const;                   // there may be holes below vocab_size()
  std::int64_t end_of_document() const;              // by name: <|endoftext|>, </s>, <|end_of_text|> ...; -1 none
  // What the file's post_processor puts before a text, which encode() does not do (special_tokens.hpp).
  const std::vector<std::int32_t>& prefix() const;

 private:
  struct State;
  class Batch;
  explicit Tokenizer(std::unique_ptr<State>);
  std::unique_ptr<State> state_;
};

struct TokenizerTraining {
  std::int64_t vocab_size = 4096;
  std::string pattern = "gpt2";                          // gpt2, llama3, qwen
  std::vector<std::string> special = {"<|endoftext|>"};  // ids after the bytes and merges... see .cpp
  int threads = 0;
  std::function<void(double done)> progress;  // 0..1, may be empty
};
// Returns tokenizer.json. Ties are broken by the smaller pair of ids: the result does not depend on threads.
std::string train_tokenizer(const std::vector<std::string_view>& documents, const TokenizerTraining&);

}  // namespace sestina
