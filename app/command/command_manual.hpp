// Texts made from the tables of the command line in addition to -h: examples, bash completion, manual page. No Kokkos.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace sestina {

void add_examples(CLI::App& root);  // adds them as the footer of every verb's help
std::string bash_completion(const CLI::App& root);
std::string manual_page(const CLI::App& root);  // roff, section 1

}  // namespace sestina
