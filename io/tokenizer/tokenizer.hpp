// Byte-level BPE in HF's tokenizer.json form: GPT-2, Llama-3 and Qwen patterns (PCRE2), NFC (utf8proc), added tokens,
// ignore_merges. It gives the same ids as the `tokenizers` package. Unsupported models are an Error(bad_data) that says
// so. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/model_config.hpp"

namespace sestina {

class Tokenizer {
 public:
  static Tokenizer load(const std::string& path);                           // tokenizer.json
  static Tokenizer parse(std::string_view json, const std::string& where);  // for tests and fuzzing
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  std::vector<std::int32_t> encode(
      std::string_view utf8) const;  // special tokens in the text are recognised; thread-safe
  // Encodes many texts on `threads` threads. A long text is encoded in parts where it can be cut without changing an
  // id, so that threads share it and memory in addition to the text is that of a batch; else it is encoded whole. The
  // sink gets the ids of all parts in order, with `last` for the last part of each text.
  using IdSink = std::function<void(const std::vector<std::int32_t>& ids, bool last)>;
  struct EncodeSizes {
    std::size_t part = 1U << 17, batch = 1U << 24;  // bytes of text
    std::function<void()> poll = {};                // called before each batch
  };
  void encode(const std::vector<std::string_view>& texts, int threads, const IdSink& sink,
              const EncodeSizes& sizes) const;
  std::vector<std::vector<std::int32_t>> encode(const std::vector<std::string_view>& texts, int threads) const;
  std::string decode(const std::int32_t* ids, std::size_t count, bool skip_special) const;
  // Decodes without repair: bytes of a character may be missing, or stand alone. decode() repairs them.
  std::string decode_bytes(const std::int32_t* ids, std::size_t count, bool skip_special) const;
  std::int64_t vocab_size() const;                   // largest id + 1
  std::int64_t id_of(std::string_view token) const;  // -1 when there is none
  bool has(std::int64_t id) const;                   // there may be holes below vocab_size()
  std::int64_t end_of_document() const;              // by name: <|endoftext|>, </s>, <|end_of_text|> ...; -1 none
  // Returns the ids that the file's post_processor puts before a text, which encode() does not do.
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
  std::vector<std::string> special = {"<|endoftext|>"};  // their ids come after those of bytes and merges
  int threads = 0;
  std::function<void(double done)> progress;  // 0..1, may be empty
};
// Returns tokenizer.json. Ties are broken by the smaller pair of ids: the result does not depend on threads.
std::string train_tokenizer(const std::vector<std::string_view>& documents, const TokenizerTraining&);

// The tokens that begin and end texts, from all the places that name them. `generate`, `eval`, training, `data
// tokenize` and export all use this.
struct SpecialTokens {
  // end is put between documents; a generation stops at each of ends. -1, empty: none.
  std::int64_t begin = -1, end = -1, pad = -1;
  std::vector<std::int64_t> ends;
  std::vector<std::int32_t> prefix;  // from the post_processor, before every text that a model is asked about
  std::string begin_source, end_source, ends_source, pad_source;  // for messages: "FILE: key", "data.end_token", a name

  bool stops_at(std::int64_t id) const;
  // Returns what a text without tokens starts from: the prefix, else begin, else end; may be empty.
  std::vector<std::int32_t> start() const;
};

// The places to look in. Each may be empty or null.
struct TokenSources {
  const Tokenizer* tokenizer = nullptr;
  std::string tokenizer_path = {};     // tokenizer.json; what Hugging Face keeps next to it belongs to it
  std::string folder = {};             // the model's: config.json, generation_config.json; "": the tokenizer's
  const ModelConfig* model = nullptr;  // for its vocabulary, and its ids where there is no config.json
  std::string begin_token = {}, end_token = {};  // data.begin_token, data.end_token of the deck
};

// Each is the first of these that names a token which the tokenizer has, as transformers looks for them:
//   end: the deck, special_tokens_map.json, tokenizer_config.json, config.json (the first of its list),
//        generation_config.json, a known name in the tokenizer, the model;
//   ends: the deck and generation_config.json, else config.json, else end, else what the model's class has for an end;
//   begin: as end, without known names;   pad: in the same way, without the deck.
// tokenizer_config.json comes before special_tokens_map.json when it has "added_tokens_decoder". transformers ignores
// add_bos_token and add_eos_token next to a tokenizer.json, and so does this. Error(bad_deck) when the deck names a
// token that is not there, Error(bad_data) on a file that is no JSON object.
SpecialTokens find_special_tokens(const TokenSources&);

// Returns "" or why documents get no end token, and what helps.
std::string missing_end(const SpecialTokens&, const TokenSources&);

}  // namespace sestina
