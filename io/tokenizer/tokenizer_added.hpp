// Tokens that are cut out of the text before the model sees it: "<|endoftext|>" and its like. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

struct AddedToken {
  std::int64_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space on its left along
  bool rstrip = false;       // ... on its right
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // left out by decode(skip_special)
};

// A stretch of text: an added token (id >= 0) or text between them (id = -1).
struct AddedSplit {
  std::int64_t id;
  std::string_view text;
};

// Finds the leftmost, of those the longest token, again and again; a match that its flags refuse is skipped whole.
// Order and overlap of stripped space follow the `tokenizers` package.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens = {});
  bool empty() const { return tokens_.empty(); }
  // A walk through a valid UTF-8 text.
  struct Scan {
    std::string_view text;
    std::size_t at = 0, done = 0;  // searched, and shown, up to here
    AddedSplit waiting{-1, {}};    // a token, when text before it was shown first
  };
  // The next stretch, which points into the text; false at the end.
  bool next(Scan& scan, AddedSplit& split) const;
  // Appends all of them.
  void split(std::string_view text, std::vector<AddedSplit>& splits) const;

 private:
  struct Node {
    std::int32_t child = -1, sibling = -1, token = -1;  // first child, next sibling, index of the token that ends here
    char byte = 0;
  };
  bool find(Scan& scan, AddedSplit& token) const;
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;
  std::int32_t child(std::int32_t node, char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; node 0 is the root
  std::int32_t start_[256];  // the root's children by byte, -1 none
};

}  // namespace sestina
