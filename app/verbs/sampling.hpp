// Drawing the next token from logits: a repetition penalty, then the most likely, or a draw from what the filters
// leave. A pure function of the logits, the context and a number u. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

namespace sestina {

struct Sampling {
  double temperature = 0.8;       // 0: the most likely token
  int top_k = 0;                  // the k most likely tokens and their equals, 0: all
  double top_p = 1;               // of these the most likely ones that hold this share of the probability; 1: all,
                                  // 0: the most likely one
  double repetition_penalty = 1;  // divides the positive logits of tokens in the context, multiplies negative ones
                                  // (Keskar et al. 2019)
};

class Sampler {
 public:
  // hidden: tokens that are never picked; some are left. No later call allocates.
  explicit Sampler(std::int64_t vocabulary, std::vector<std::int32_t> hidden = {});

  // logits (V); context: tokens so far, prompt included; u in [0, 1) picks among the tokens that are left, in the order
  // of their numbers. Filters in the order top_k, top_p.
  std::int32_t pick(const float* logits, const Sampling&, const std::vector<std::int32_t>& context, double u);

 private:
  void penalise(double penalty, const std::vector<std::int32_t>& context);
  float top_k_threshold(int k);
  void keep_share(double share, double total);

  std::vector<std::int32_t> hidden_;
  std::vector<float> scores_;  // logits, then weights
  std::vector<float> sorted_;
  std::vector<std::int32_t> order_;
  std::vector<bool> seen_;
};

}  // namespace sestina
