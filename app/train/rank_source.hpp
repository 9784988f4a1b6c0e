// The model of a verb that runs forward passes on the ranks that were started: the first rank finds it, all read its
// deck under the same layers, and all compare what they read before anything depends on it. Each call is collective and
// a phase of the start-up; ranks that differ, or fail by themselves, fail together (AgreedError).
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "app/train/rank_agreement.hpp"
#include "app/train/restore.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

// Compares the programs, then finds the source (find_source).
Source find_rank_source(Runtime&, const std::string& checkpoint_or_run, const std::string& hf);

// Reads the deck (read_source_deck) and compares it, and what else the command line says; sets the start's timeout.
// whole: every rank has the whole model and all data, as one process has, and the deck is that of one.
Options read_rank_options(Runtime&, const Source&, const DeckArguments& layers, std::vector<Statement> more,
                          bool whole = false);

// Compares the files that the options name, those of the command line, as (option, path), and the checkpoint.
void compare_rank_data(Runtime&, const Source&, const Options&,
                       const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace sestina
