// A build without liburing: files are read and written by threads.
#include "io/store/chunk_engine.hpp"

namespace sestina {

std::unique_ptr<ChunkEngine> make_chunk_ring(int, const ChunkBuffers&, int, std::string& why, std::string&) {
  why = "this build has no io_uring (SESTINA_ENABLE_URING)";
  return nullptr;
}

bool chunk_ring_compiled() { return false; }

}  // namespace sestina
