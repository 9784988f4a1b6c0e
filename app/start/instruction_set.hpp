// The instruction set that decides the bits of a run: libraries choose their code by it when the program starts.
#pragma once
#include <string>

namespace sestina {

// The widest set this processor has of those that change how products are computed ("amx-bf16", "avx512bf16",
// "avx512f", "avx2", "x86-64", or "other"). Bits are promised to be equal between equal strings only.
std::string instruction_set();

}  // namespace sestina
