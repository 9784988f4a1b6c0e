// What the files of a run hold, as one digest whatever they are called and wherever they lie. No Kokkos.
#pragma once
#include <string>

#include "core/deck/options.hpp"
#include "io/store/digest.hpp"

namespace sestina {

// Of the files that open_source() would read: index files whole, others as digest_files() does. The same errors.
FileDigest digest_source(const DataSource&, const Poll& poll = {});
// Of a Hugging Face folder: configuration and weights.
FileDigest digest_hf_folder(const std::string& folder, const Poll& poll = {});

}  // namespace sestina
