// The name of this node, as messages, locks and files name it.
#pragma once
#include <string>

namespace sestina {

std::string host_name();  // "unknown host" where the system has none

}  // namespace sestina
