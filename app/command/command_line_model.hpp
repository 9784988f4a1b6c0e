// Options of the verbs that use a trained model, in addition to those that all verbs share. No Kokkos.
#pragma once
#include <CLI/CLI.hpp>

#include "app/command/verbs.hpp"

namespace sestina {

// These add options to a parser, which the arguments must outlive.
void add_eval_options(CLI::App&, EvalArguments&);
void add_hessian_options(CLI::App&, HessianArguments&);
void add_generate_options(CLI::App&, GenerateArguments&);
// Takes "-" from among the overrides as the prompt on standard input. Error(usage) without a prompt.
void finish_prompts(GenerateArguments&);

}  // namespace sestina
