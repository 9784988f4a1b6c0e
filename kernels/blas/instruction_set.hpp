// The instruction set that decides the bits of a run: libraries choose their code by it when the program starts.
#pragma once
#include <string>

namespace sestina {

// The widest set of those that change how products are computed that the library of products uses on this processor
// (ONEDNN_MAX_CPU_ISA may say less than it has): "amx-bf16", "avx512bf16", "avx512f", "avx2", "x86-64", or "other"; and
// the way of bf16 where the processor has no products of it: "avx2, bf16 widened to fp32". Bits are promised to be
// equal between equal strings only.
std::string instruction_set();

}  // namespace sestina
