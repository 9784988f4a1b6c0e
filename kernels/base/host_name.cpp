#include "kernels/base/host_name.hpp"

#include <unistd.h>

namespace sestina {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

}  // namespace sestina
