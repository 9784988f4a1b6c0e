// The phases of the start of `sestina train`, from the command line to the data; their order is that of train_on_ranks
// (verb_train.cpp). Every rank runs each of them, and an error or a vote to stop at one rank ends all of them.
#pragma once
#include <memory>
#include <string>

#include "app/command/verbs.hpp"
#include "app/start/run_dir.hpp"
#include "app/start/start_up.hpp"
#include "app/start/stop.hpp"
#include "app/train/run_data.hpp"
#include "app/train/trainer.hpp"
#include "io/report/metrics.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

// What a start has found so far.
struct TrainStart {
  TrainStart(const TrainArguments&, Runtime&, Stop&);
  TrainStart(const TrainStart&) = delete;
  TrainStart& operator=(const TrainStart&) = delete;

  const TrainArguments& arguments;
  Runtime& runtime;
  Stop& stop;
  StartUp phases;
  TrainSetup setup = {};
  std::string stored = {};  // the deck of the checkpoint, "" none
};

// The ranks run the same program with the same command line.
void compare_programs(TrainStart&);
// Finds the run directory, and the fault that is made on purpose.
void read_run_dir(TrainStart&);
// Checkpoints that were whole on staging disks when a run in this directory was killed reach it before one is chosen.
void finish_staged_saves(TrainStart&);
// Finds and verifies the newest checkpoint on the first rank, and reads its deck.
void find_checkpoint(TrainStart&);
// Reads the deck and looks at memory and data; ends the run, before anything depends on them, unless deck, data and
// checkpoint are the same on all ranks.
void resolve_deck(TrainStart&);
// Opens the run directory, which belongs to the first rank: it locks it. Null on the other ranks.
std::unique_ptr<RunDir> open_run_dir(TrainStart&);
// From here on the run is logged, and stops as its deck says.
void open_log(TrainStart&);
std::unique_ptr<Metrics> open_metrics(TrainStart&);
// Logs what is trained, and what of the deck deserves a warning.
void log_deck(const TrainStart&);

struct TrainData {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<SampleSet> training, validation;  // validation: null where nothing is held back or evaluated
};
TrainData open_data(TrainStart&);

}  // namespace sestina
