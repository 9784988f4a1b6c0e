// [model.linear]: in which form the weights of the linear layers inside blocks are kept and trained. A form is a row of
// the table in core/layout/weight_form.hpp; `dense` is none. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sestina {

class Deck;
struct ModelConfig;
struct ModelDefect;
struct Options;

struct LinearOptions {
  std::string form = "dense";

  // poet-x
  enum class Variant { fast, mem, xq } variant = Variant::fast;  // keeps c; makes it again; and its base in 8 bits
  std::int64_t block_size = 256, merge_every = 200;              // updates between merges
  bool staggered = false;  // merge_phase: layer l merges at updates t with (t + l) mod merge_every = 0, not all at once
  bool residual = false;   // the base in bf16 has a byte next to each value, which keeps what merges would round away
  // Parts of the side that tensor parallelism cuts which no permutation and no block of a rotation leaves; of the model
  // of one rank: its own, and the number of the first of them among all.
  std::int64_t shards = 1, first_shard = 0;
  bool even = false;       // cnp = "even"
  double lr_factor = 0.5;  // of the rotations
  enum class Init { normalized, gaussian } init = Init::normalized;
  std::int64_t group_size = 256;  // weights that share a scale (xq)
  bool zero_in_range = true;      // of their codes; false: the published rule
  bool dense_if_indivisible = false;
  bool eps_on_corrected = true;                               // false, as published: eps next to the uncorrected root
  std::int64_t clip_warmup_steps = 0, clip_warmup_until = 0;  // updates after a merge; last update that knows them
  double clip_start_ratio = 0;                                // of train.clip_norm, right after a merge

  // lora
  std::int64_t rank = 8;
  double alpha = 16;

  bool is_dense() const { return form == "dense"; }
  static LinearOptions read(Deck&);
};

// What keeps the weights of this model from their form; keys are those of [model]. Empty when nothing does.
std::vector<ModelDefect> linear_defects(const ModelConfig&);
// What follows from other sections, read after them: model.linear.shards, of which parallel.tp is the default, and
// model.linear.merge_residual, which is for bf16.
void read_with_others(Deck&, Options&);
// Collects errors for what of a deck does not go with the form.
void require_form_fits(Deck&, const Options&);

// Clipping threshold of update t (from 1): train.clip_norm, but for the first updates after a merge, where it rises
// from clip_start_ratio of it in a line.
double clip_norm_at(const LinearOptions&, double clip_norm, std::int64_t t);

}  // namespace sestina
