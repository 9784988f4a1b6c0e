#include "io/tokenizer/tokenizer_sections.hpp"

#include <algorithm>

#include "io/tokenizer/pretokenize.hpp"

namespace sestina {

// A cut lies between a line feed and an ASCII letter. Both are starters, and neither composes with what comes before
// it, so NFC of the whole is NFC of the two sides (Unicode Standard Annex 15, section 9.1). A token without a line feed
// matches on one side only, and the search, which restarts after each match, stands at the line feed in both cases;
// single_word sees the line feed or an end, which are equal. lstrip could reach over the cut to the left. rstrip could
// eat up to the cut, and what follows would then begin a stretch, which matters where that gets a prefix space.
bool sections_cuttable(bool nfc, const std::vector<AddedToken>& tokens, bool pieces_cuttable, bool prefix_space) {
  const auto in_the_way = [&](const AddedToken& token) {
    return token.content.find('\n') != std::string::npos || token.lstrip || (token.rstrip && prefix_space);
  };
  return pieces_cuttable && !(nfc && std::any_of(tokens.begin(), tokens.end(), in_the_way));
}

SectionReader::SectionReader(const SectionRules& rules, std::string_view text, std::size_t longest)
    : rules_(rules), longest_(longest), raw_{text}, inner_{{}} {}

// An added token, or the text between two.
bool SectionReader::next_stretch(AddedSplit& split) {
  while (!rules_.normalized.next(inner_, split)) {
    if (!rules_.raw.next(raw_, split)) return false;
    if (split.id >= 0 || rules_.nfc) return true;
    inner_ = {split.text};
  }
  return true;
}

bool SectionReader::next(TextSection& section) {
  if (rest_.empty()) {
    AddedSplit split;
    if (!next_stretch(split)) return false;
    section = {split.id, split.text, true};
    if (split.id >= 0 || split.text.size() <= longest_ || !rules_.cuttable) return true;
    rest_ = split.text;
    begins_ = true;
  }
  const std::size_t cut = rest_.size() > longest_ ? next_cut(rest_, longest_) : rest_.size();
  section = {-1, rest_.substr(0, cut), begins_};
  rest_.remove_prefix(cut);
  begins_ = false;
  return true;
}

}  // namespace sestina
