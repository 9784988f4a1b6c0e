// The verbs of the program: one function and one file (verb_<name>.cpp) each, with what the command line said as plain
// fields. A verb returns the exit code or throws Error. No Kokkos here: a verb that computes starts it
// (kokkos_session.hpp). Arguments of `bench` and `diagnose` are here too, since all verbs are of one command line; the
// verbs themselves are in app/bench and app/experiments.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/deck/deck.hpp"
#include "kernels/base/error.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

// The sources of a verb's deck on the command line. run_deck.hpp puts them together.
struct DeckArguments {
  std::vector<std::string> files;      // each -i, in rising precedence
  std::vector<std::string> overrides;  // section.key=value
  bool empty() const { return files.empty() && overrides.empty(); }
  std::string hf = {};  // --hf: a folder that takes the place of [model] in the deck, as its from_hf
  bool model_is_stored =
      false;  // a checkpoint holds the model of a Hugging Face folder: model.from_hf is not read again
  // The files by their paths, as they were when they were first read; copies of this object share them.
  std::shared_ptr<std::map<std::string, DeckFile>> read = std::make_shared<std::map<std::string, DeckFile>>();
};

struct TrainArguments {
  DeckArguments deck;
  std::string resume;               // -r: "", "auto", "latest", or a checkpoint folder
  std::string run_dir;              // -d, "" = run.dir of the deck
  bool dry_run = false;             // -n: check the deck, print it resolved
  bool weights_only = false;        // --weights-only: fork with weights alone
  std::string progress = "auto";    // --progress: auto, always, never
  std::string command_line;         // the command line as given, for metrics.jsonl
  double walltime = 0;              // -t in seconds, 0 = run.walltime of the deck
  std::vector<std::string> kokkos;  // --kokkos-* flags
};

struct InitArguments {
  std::string name, output;               // name of the run; deck to write, "" = <name>.toml
  std::string preset = "llama-8m", data;  // data: text, JSONL or token files, "" = a place to fill in
};

struct PlanArguments {
  DeckArguments deck;
  std::string reading;  // empty, or "canzona-paper": load ratios as that paper counts them
  bool json = false;
};

struct EvalArguments {
  DeckArguments deck;
  std::string checkpoint, hf;  // exactly one is set
  std::string choices;         // --choices: a JSONL file to score instead of the data
  std::string weights;         // --weights: trained, ema or average; "": average where the run kept it, else trained
  bool json = false;
  std::vector<std::string> kokkos;
};

struct HessianArguments {
  DeckArguments deck;  // may be empty: the checkpoint's own counts
  std::string checkpoint;
  int vectors = 50;  // Cauchy vectors
  std::uint64_t seed = 1;
  bool json = false;
  std::vector<std::string> kokkos;
};

struct GenerateArguments {
  DeckArguments deck;          // may be empty: the checkpoint's own counts
  std::string checkpoint, hf;  // exactly one is set
  std::string weights;         // as in EvalArguments
  struct Prompt {
    std::string text;  // the prompt, or the path of its file, "-" = standard input
    bool file = false;
  };
  std::vector<Prompt> prompts;     // at least one
  std::string tokenizer;           // "" = data.tokenizer of the deck
  std::vector<std::string> stops;  // the text ends before the first of them
  int tokens = 128, samples = 1;   // tokens of a sample; samples of each prompt
  double temperature = 0.8;        // 0 = the most likely token
  int top_k = 0;                   // 0 = all
  double top_p = 1, repetition_penalty = 1;
  std::uint64_t seed = 1;
  bool json = false;
  std::vector<std::string> kokkos;
};

struct DataTokenizeArguments {
  std::vector<std::string> inputs;  // text files or folders, each file a document
  std::string tokenizer;            // tokenizer.json, "" = bytes
  std::string output;               // Megatron prefix: <output>.bin and .idx
  std::string separator;            // splits a file into documents at lines equal to it, "" = one document
  std::string text_key = "text";    // key of the text in JSONL files
  double invalid_limit = 0.01;      // share of JSONL lines that may be skipped
  bool end_of_document = true;      // append the end token to each document
  std::string end_token;            // text of the end token, "" = as the files next to the tokenizer name it
  int threads = 0;                  // 0 = all cores
  bool json = false;
};
struct DataTrainTokenizerArguments {
  std::vector<std::string> inputs;
  std::string output;  // tokenizer.json
  std::int64_t vocab_size = 4096;
  std::string pattern = "gpt2";  // gpt2, llama3, qwen
  std::vector<std::string> special = {"<|endoftext|>"};
  std::string text_key = "text";  // key of the text in JSONL files
  double invalid_limit = 0.01;
  int threads = 0;
  bool json = false;
};
struct DataInspectArguments {
  std::string path;       // token file, Megatron prefix or text file
  std::string format;     // "" = by suffix
  std::string tokenizer;  // shows tokens as text, "" = as ids
  int tokens = 32;        // tokens to show
  bool json = false;
};
struct DataVerifyArguments {
  DeckArguments deck;              // -i: all sources of the deck
  std::vector<std::string> paths;  // files to check in addition
  std::string format;              // format of the paths, "" = by suffix
  std::int64_t vocab_size = 0;     // 0 = not checked (a deck gives its model's)
  bool json = false;
};

struct CheckpointListArguments {
  std::string run_dir;
  bool json = false;
};
struct CheckpointVerifyArguments {
  std::string path;   // a checkpoint, or a run directory for all of its checkpoints
  bool full = false;  // also read every dataset
  bool json = false;
};
struct CheckpointExportArguments {
  std::string checkpoint, output;  // output: a new folder for model.safetensors and config.json
  std::string tokenizer;           // a file to copy as well, "" = data.tokenizer of the checkpoint's deck
  std::string weights;             // as in EvalArguments
  bool bf16 = false;               // stores bf16 instead of fp32
};
struct CheckpointConvertArguments {
  std::string checkpoint, run_dir;  // run directory that gets the same step in another number of shards
  int shards = 1;
  bool json = false;
};
struct CheckpointImportArguments {
  std::string hf, run_dir;  // HF folder; run directory; checkpoints/step_00000000 is written there
  DeckArguments deck;       // the run's deck to store with the weights, may be empty
};

struct ReportArguments {
  std::vector<std::string> run_dirs;
  std::string output;                   // "" = report.html, or report.csv, in the first run directory
  bool csv = false;                     // a table instead of the page
  bool watch = false;                   // writes it again and again while the runs go on
  double interval = 5;                  // seconds between two looks
  bool compare = false;                 // prints final losses and their significance instead
  std::optional<double> target, sigma;  // of the comparison (io/report/comparison.hpp)
  bool json = false;                    // the comparison as one JSON object
};

struct SweepArguments {
  DeckArguments deck;
  std::string dir;  // -d: the folder of the sweep
  bool json = false;
};

struct BenchArguments {
  DeckArguments deck;
  int steps = 20, warmup = 3;
  std::string machine;  // --machine: a [machine] table to write, "" none
  bool json = false;
  std::vector<std::string> kokkos;
};

struct BenchOptimizerArguments : BenchArguments {
  std::string shapes;  // --shapes: matrices "1024x1024,768x2048" instead of the deck's model
};

struct BenchIoArguments : BenchArguments {
  BenchIoArguments() {
    steps = 5;  // pairs of transfers at each queue depth
    warmup = 1;
  }
  int mebibytes = 256;  // --size: that of the file
};

struct InfoArguments {
  bool json = false, speed = false;
  std::vector<std::string> kokkos;
};

struct CheckArguments {
  DeckArguments deck;
  bool json = false;
  std::vector<std::string> kokkos;
};

int run_train(const TrainArguments&, const RankSource&);
int run_init(const InitArguments&);
int run_plan(const PlanArguments&);
int run_eval(const EvalArguments&, const RankSource&);
int run_generate(const GenerateArguments&, const RankSource&);
int run_data_tokenize(const DataTokenizeArguments&);
int run_data_train_tokenizer(const DataTrainTokenizerArguments&);
int run_data_inspect(const DataInspectArguments&);
int run_data_verify(const DataVerifyArguments&);
int run_checkpoint_list(const CheckpointListArguments&);
int run_checkpoint_verify(const CheckpointVerifyArguments&);
int run_checkpoint_export(const CheckpointExportArguments&);
int run_checkpoint_convert(const CheckpointConvertArguments&);
int run_checkpoint_import(const CheckpointImportArguments&);
int run_report(const ReportArguments&);
int run_sweep(const SweepArguments&);
int run_info(const InfoArguments&, const RankSource&);
int run_check(const CheckArguments&, const RankSource&);

}  // namespace sestina
