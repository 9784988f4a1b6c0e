#include "parallel/comm/communicator.hpp"

#include <algorithm>

namespace sestina {

std::size_t Message::bytes() const {
  std::size_t sum = 0;
  for (const Block& block : blocks) sum += block.bytes();
  return sum;
}

void Communicator::broadcast(std::string& text, int root) {
  std::uint64_t length = text.size();
  broadcast(&length, sizeof length, root);
  text.resize(length);
  if (length > 0) broadcast(text.data(), length, root);
}

std::vector<std::string> Communicator::all_gather(const std::string& mine) {
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size()));
  all_gather(&length, sizeof length, lengths.data());
  const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) return texts;
  std::string padded = mine, all(longest * lengths.size(), '\0');
  padded.resize(longest);
  all_gather(padded.data(), longest, all.data());
  for (std::size_t i = 0; i < texts.size(); ++i) texts[i] = all.substr(i * longest, lengths[i]);
  return texts;
}

}  // namespace sestina
