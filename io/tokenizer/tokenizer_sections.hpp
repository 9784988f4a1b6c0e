// A document as sections that are encoded one by one, on any thread, and together have the ids of the whole. No Kokkos.
#pragma once
#include <cstdint>
#include <string_view>

#include "io/tokenizer/tokenizer_added.hpp"

namespace sestina {

struct TextSection {
  std::int64_t id = -1;   // an added token, or -1: text
  std::string_view text;  // as it stands in the document
  bool begins = true;     // follows an added token or the document's begin: a prefix space is due
};

// What a tokenizer does with a text before its pieces are encoded.
struct SectionRules {
  const AddedTokens& raw;         // looked for in the text as it stands
  const AddedTokens& normalized;  // ... in the normalized text
  bool nfc;                       // normalize
  bool cuttable;                  // text between added tokens may be cut at next_cut, see sections_cuttable
};

// Whether a text between raw added tokens can be cut at next_cut before it is normalized. `tokens` are the normalized
// ones, `pieces_cuttable` and `prefix_space` what the pre-tokenizer says of itself.
bool sections_cuttable(bool nfc, const std::vector<AddedToken>& tokens, bool pieces_cuttable, bool prefix_space);

// Added tokens are found in the whole document, so no cut changes them or what they see on either side. Only where the
// text is normalized first are the normalized ones left to whom encodes the section.
class SectionReader {
 public:
  // Valid UTF-8 and `rules` must outlive the reader. Text longer than `longest` is cut where it may be.
  SectionReader(const SectionRules& rules, std::string_view text, std::size_t longest);
  bool next(TextSection& section);

 private:
  bool next_stretch(AddedSplit& split);
  SectionRules rules_;
  std::size_t longest_;
  AddedTokens::Scan raw_, inner_;
  std::string_view rest_;  // of the stretch that is being cut
  bool begins_ = true;
};

}  // namespace sestina
