#include "app/memory_check.hpp"

#include <fstream>
#include <string>

#include "core/model_size.hpp"
#include "core/optimizer/routing.hpp"
#include "kernels/exec.hpp"

namespace sestina {

std::uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::uint64_t kibibytes = 0;
  while (file >> word)
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes * 1024;
  return 0;
}

void require_memory(const Options& options) {
  const bool own_memory = !Kokkos::SpaceAccessibility<Host, Device::memory_space>::accessible;
  if (own_memory && options.run.space == RunOptions::Space::device) return;
  const StorageWidth width = options.train.precision == TrainOptions::Precision::bf16 ? width_bf16 : width_fp32;
  const int micro_batch = options.train.micro_batch > 0 ? options.train.micro_batch : options.train.global_batch;
  const ModelSize size =
      model_size(options.model, {0, static_cast<int>(options.model.num_hidden_layers)}, micro_batch,
                 options.data.sequence_length, width, options.train.recompute,
                 optimizer_state_bytes(tensor_specs(options.model), options.optimizer, width.accumulate));
  // A checkpoint is written from a host copy of weights and state.
  const std::uint64_t snapshot = size.master + size.optimizer, need = size.total() + snapshot,
                      have = available_memory_bytes();
  if (have == 0 || need <= have) return;
  const auto gb = [](std::uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  fail(ExitCode::unavailable,
       "the run needs {:.2f} GB of memory, this machine has {:.2f} GB left: weights {:.2f}, master weights {:.2f}, "
       "gradients {:.2f}, "
       "optimizer {:.2f}, activations {:.2f}, workspace {:.2f}, checkpoint copy {:.2f}; a smaller train.micro_batch or "
       "train.recompute = true "
       "shrinks the activations",
       gb(need), gb(have), gb(size.weights), gb(size.master), gb(size.gradients), gb(size.optimizer),
       gb(size.activations), gb(size.workspace), gb(snapshot));
}

}  // namespace sestina
