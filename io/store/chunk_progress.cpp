#include "io/store/chunk_progress.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "io/store/chunk_engine.hpp"

namespace sestina {

constexpr int most_again = 20;  // transfers of a chunk in a row that move nothing
constexpr int most_failed = 3;  // with EIO

ChunkProgress::Next ChunkProgress::take(std::int64_t result, std::size_t needed, std::string& why, Retry* patience) {
  if (result < 0) {
    const auto error = static_cast<int>(-result);
    const bool final = error == EIO          ? ++failed > most_failed
                       : patience != nullptr ? !patience->again(error)
                                             : !may_pass(error) || ++again > most_again;
    if (final) {
      why = std::strerror(error);
      return Next::failed;
    }
    if (error != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return Next::more;
  }
  const std::size_t before = moved;
  moved += static_cast<std::size_t>(result);
  if (moved >= needed) return Next::done;
  moved = moved / block_alignment * block_alignment;
  again = moved > before ? 0 : again + 1;
  if (moved > before) failed = 0;
  if (again <= most_again) return Next::more;
  why = "nothing more is moved";
  return Next::failed;
}

}  // namespace sestina
