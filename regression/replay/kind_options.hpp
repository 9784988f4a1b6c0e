// Keys of a kind of matrix optimizer from the attributes of a golden file.
#pragma once
#include "core/deck/kinds.hpp"
#include "regression/hdf5_reader.hpp"

namespace sestina::replay {

// The keys have the names of the attributes of /hyper; where a file's words differ from ours, they are translated.
MatrixOptions kind_options(const Hdf5Reader&, const MatrixKind&);

}  // namespace sestina::replay
