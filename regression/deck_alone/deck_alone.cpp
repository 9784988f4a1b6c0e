// Reads a deck without any optimizer but AdamW, then with one that this program registers.
#include <cstdio>
#include <string>

#include "core/deck/options.hpp"

namespace {

using namespace sestina;

struct PlainOptions {
  double beta = 0.5;
  void fields(OptionFields& f) { f.number("beta", beta, below_one); }
};

// What reading the deck says; "": nothing.
std::string problem(const std::string& kind) {
  Deck deck;
  deck.add_text("[model]\npreset = \"llama-8m\"\n[optimizer]\nkind = \"" + kind + "\"\nbeta = 0.25\n", "deck", "");
  try {
    const Options options = Options::read(deck);
    deck.finish();
    return options.optimizer.matrix->as<PlainOptions>().beta == 0.25 ? "" : "beta was not read";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

int main() {
  const std::string unknown = problem("plain");
  MatrixKind kind = matrix_kind<PlainOptions>("plain");
  kind.state = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) {
    return std::vector<FieldSize>{{"momentum", DType::f32, rows, cols}};
  };
  add_matrix_kind(kind);
  const std::string known = problem("plain");
  std::printf("unregistered: %s\nregistered: %s\n", unknown.c_str(), known.c_str());
  return unknown.find("optimizer.kind") != unknown.npos && known.empty() ? 0 : 1;
}
