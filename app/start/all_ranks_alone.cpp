// A build without MPI has no communicator; Runtime says so before it asks, where a launcher started several tasks.
#include "app/start/all_ranks.hpp"

namespace sestina {

RankSource all_ranks() {
  return {[] { return 0L; }, true};
}

}  // namespace sestina
