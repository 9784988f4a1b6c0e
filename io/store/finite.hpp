// Finds values that are not finite among those of a tensor in host memory. No Kokkos.
#pragma once
#include <optional>
#include <string>

#include "core/memory/state_field.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

// Returns the index of the first of so many bytes of values that is infinite or no number; empty when there is none, as
// always among integers.
std::optional<std::size_t> first_nonfinite(DType, const void*, std::size_t bytes);

// Returns "/model/x.weight holds a value that is not finite (nan at row 3, column 0)" for *value, number `index` of the
// slab.
std::string nonfinite_text(const StateField&, const void* value, std::size_t index);

// Throws Error(code) with that text, after `where`, if there is such a value in the field.
void require_finite(const StateField&, const void* data, ExitCode code, const std::string& where);

}  // namespace sestina
