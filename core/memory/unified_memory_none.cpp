#include "core/memory/unified_memory.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

[[noreturn]] void refuse_unified() {
  fail(ExitCode::unavailable,
       "optimizer.refresh.tier, optimizer.state_tier: \"unified\" needs a device of CUDA; allowed: "
       "\"device\"");
}

}  // namespace

std::shared_ptr<std::byte> unified_memory(std::size_t) { refuse_unified(); }
bool is_unified(const std::shared_ptr<std::byte>&) { return false; }
void ask_for_pages(const std::byte*, std::size_t, int, void*) { refuse_unified(); }

}  // namespace sestina
