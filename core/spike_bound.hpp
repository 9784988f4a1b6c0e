// Spikes of the loss, the gradient norm and the largest attention logit: values far above those of the last updates.
// The bound is robust: spikes that it has seen hardly move it. No Kokkos.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace sestina {

struct SpikeRule {
  int window = 100;    // W updates
  double factor = 10;  // k
};

// Returns median + k * max(1.4826 * MAD, 0.01 * |median|) of the last values, at most W of them, where MAD is the
// median of the distances from the median, and 1.4826 * MAD the standard deviation of normal noise. The floor keeps a
// flat curve quiet. There is no bound before W / 2 values. scratch is overwritten.
std::optional<double> spike_bound(const std::vector<double>& last, const SpikeRule&, std::vector<double>& scratch);

// The values of an update that are watched; NaN: not known.
inline constexpr std::array<std::string_view, 3> watched_names = {"loss", "grad_norm", "attention_logit"};
using WatchedValues = std::array<double, watched_names.size()>;

struct Spike {
  std::string_view name;  // of watched_names
  double value = 0, bound = 0;
};

// The values of the last W updates. What it finds depends on them alone, so that ranks that add the same values, and a
// run that was resumed with them, find the same.
class SpikeWatch {
 public:
  explicit SpikeWatch(const SpikeRule&);
  std::optional<Spike> find(const WatchedValues&);  // the first of the values that is above its bound
  void add(const WatchedValues&);                   // those of a finished update; what is not finite is left out
  // Values by name, the oldest first: the state that checkpoints keep. Of more than W values the newest are taken.
  const std::vector<double>& last(std::size_t name) const { return last_[name]; }
  void restore(std::size_t name, const std::vector<double>& last);

 private:
  SpikeRule rule_;
  std::array<std::vector<double>, watched_names.size()> last_;
  std::vector<double> scratch_;
};

}  // namespace sestina
