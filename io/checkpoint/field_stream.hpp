// Fields of a save that are not copied before it go piece by piece from where they lie to the thread that writes. The
// thread that may touch them moves them: it pins blocks of a store, to read them, and copies from a device. Few pieces
// are in memory at a time (core/memory/state_field.hpp), whatever the fields take. No Kokkos.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/pager.hpp"
#include "core/memory/state_field.hpp"

namespace sestina {

// Copies what lies in the memory of a device into host memory.
using CopyFromDevice = std::function<void(const StateField&, void* host)>;

class FieldStream {
 public:
  // Called by the thread that has the fields, when no stream is under way.
  void begin(std::vector<StateField> fields);
  // Moves pieces, for about a second at most. Returns false when there are no more, or the other side has ended; a
  // value that is not finite ends the stream too, and problem() names it. An exception ends the stream for the other
  // side as well.
  bool feed(const CopyFromDevice&);
  const std::string& problem() const { return problem_; }
  void give_up();  // ends the stream: no further piece is moved

  // Called by the thread that writes: takes the bytes of the next field in turn, with use(data, bytes) for each piece.
  // Error(io_error) when the stream has ended before its last one.
  void take(const StateField&, const std::function<void(const void*, std::size_t)>& use);
  void end();  // says that nothing more is taken

 private:
  using Bytes = std::vector<std::byte>;
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::size_t most = 2;  // pieces in memory

  void fill(Bytes&, const CopyFromDevice&);
  void pin_block();
  void move_on(std::size_t bytes);  // after a piece of so many bytes
  void close(Lock&, const std::string& why);

  // Used by the thread that has the fields.
  std::vector<StateField> fields_;
  std::size_t next_ = 0, at_ = 0;  // the next field, and the next byte of it
  std::optional<Pin> pin_;         // pins the block of that byte until all pieces of it are copied
  std::size_t pinned_ = 0;         // the field's bytes up to the end of that block
  std::string problem_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Bytes> full_, empty_;
  std::size_t pieces_ = 0;  // pieces that exist
  bool closed_ = true;
  std::string why_;
};

}  // namespace sestina
