// Implements Pattern with PCRE2: compiled once, just-in-time where the machine allows it.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "io/tokenizer/tokenizer_pattern.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::uint32_t kHeapLimitKib = 1U
                                        << 20;  // of the interpreter, which takes over when the machine stack is short

template <class T>
T* non_null(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR bytes(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Pattern::Code {
  pcre2_code* code;
  std::string where;
  ~Code() { pcre2_code_free(code); }
};

struct Pattern::Match::Handles {
  pcre2_match_data* data = non_null(pcre2_match_data_create(1, nullptr));
  pcre2_match_context* context = non_null(pcre2_match_context_create(nullptr));
  ~Handles() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

Pattern::Match::Match() : handles_(std::make_unique<Handles>()) {}
Pattern::Match::~Match() = default;
std::size_t Pattern::Match::begin() const { return pcre2_get_ovector_pointer(handles_->data)[0]; }
std::size_t Pattern::Match::end() const { return pcre2_get_ovector_pointer(handles_->data)[1]; }

Pattern::Pattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;

static pcre2_code* compile(std::string_view pattern, std::uint32_t options, const std::string& where) {
  pcre2_compile_context* context = non_null(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(bytes(pattern), pattern.size(), options, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    fail(ExitCode::bad_data, "{}: pattern \"{}\": {} (at {})", where, pattern, message_of(error), offset);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it the interpreter runs
  return code;
}

Pattern Pattern::regex(std::string_view pattern, const std::string& where) {
  return Pattern(
      std::unique_ptr<Code>(new Code{compile(to_pcre2(pattern, where), PCRE2_UTF | PCRE2_UCP, where), where}));
}

Pattern Pattern::literal(std::string_view text, const std::string& where) {
  return Pattern(std::unique_ptr<Code>(new Code{compile(text, PCRE2_UTF | PCRE2_LITERAL, where), where}));
}

bool pcre2_has_unicode(int first, int last) {
  char version[24] = "";  // "14.0.0"
  if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, nullptr) > static_cast<int>(sizeof version)) return false;
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  const int major = std::atoi(version);
  return first <= major && major <= last;
}

bool Pattern::find(std::string_view text, std::size_t from, Match& match) const {
  Match::Handles& h = *match.handles_;
  const std::size_t steps = std::min<std::size_t>(UINT32_MAX, 10'000'000 + 64 * text.size());
  pcre2_set_match_limit(h.context, static_cast<std::uint32_t>(steps));
  pcre2_set_heap_limit(h.context, kHeapLimitKib);
  int found = pcre2_match(code_->code, bytes(text), text.size(), from, PCRE2_NO_UTF_CHECK, h.data, h.context);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found =
        pcre2_match(code_->code, bytes(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, h.data, h.context);
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    fail(ExitCode::bad_data, "{}: pattern on {} bytes of text: {}", code_->where, text.size(), message_of(found));
  return true;
}

}  // namespace sestina
