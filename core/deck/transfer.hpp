// Rates that transfer (schedule.transfer): the deck's rates, decays and first weights are those of a model of another
// width and depth, and the program derives those of this one. With m = hidden_size / from_hidden and l = layers /
// from_layers, where every size that grows grows with the width and head_dim stays:
//
//   matrices in blocks   lr m^-p       lr decay m^-1   first weights m^-1/2
//   head                 lr m^-1       lr decay m^-1   first weights m^-1
//   the rest             as the deck says (embeddings, norms, biases)
//   ends of branches     lr l^-1       decay l         first weights l^-1, in addition: o_proj and down_proj
//
// An update may change what a layer puts out by as much at any width if its spectral norm keeps to that of the weight,
// a constant for matrices whose sides grow together (Yang, Simon, Bernstein 2023, arXiv 2310.17813). So p follows from
// the size of an update (a row of core/deck/kinds.hpp): 1 for elementwise rules, whose elements of one size add up
// along the signal (muP, arXiv 2203.03466, table 3); 0 for orthogonal updates of unit spectral norm; 1/2 for orthogonal
// or whitened updates of one RMS (Muon with match_rms_adamw, SOAP, Shampoo with Adam's size), whose spectral norm grows
// with the root of the width. Where the update is as large as a share of the weight (hyperball), p is 1/2 smaller than
// with one RMS. The decay of an update falls with the width (arXiv 2512.05620). The rule of depth is that of CompleteP
// (arXiv 2505.01618, alpha = 1): branches are scaled by 1 / l, which at the end of a branch is the same as weights,
// their updates and what decays of them scaled so. No Kokkos.
#pragma once
#include <cstdint>

namespace sestina {

class Deck;
struct Options;

struct TransferOptions {
  std::int64_t from_hidden = 0, from_layers = 0;  // of the model whose rates the deck has; 0: those of this one
};

struct RateTransfer {
  double width = 1, depth = 1;                   // m and l
  double matrix_power = 0.5, element_power = 1;  // p under optimizer.kind, and under the elementwise rule
  bool sized_by_weight = false;                  // matrices move by a share of their norm
  bool on() const { return width != 1 || depth != 1; }
};

TransferOptions read_transfer(Deck&);
// Sets options.optimizer.transfer and the first ranges of options.model, once all sections are read; collects errors
// where no rule is known.
void apply_transfer(Deck&, Options&);

}  // namespace sestina
