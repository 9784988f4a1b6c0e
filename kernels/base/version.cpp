#include "kernels/base/version.hpp"

#include "version_values.hpp"

namespace sestina {

const Version& version() {
  static constexpr Version here = {version_values::major,   version_values::minor,  version_values::patch,
                                   version_values::text,    version_values::commit, version_values::build_type,
                                   version_values::compiler};
  return here;
}

}  // namespace sestina
