#include "app/command/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>

#include "app/command/command_line_model.hpp"
#include "app/command/command_manual.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/model_config.hpp"
#include "kernels/base/version.hpp"

namespace sestina {
namespace {

// CLI11's tree of verbs; each verb fills its own arguments and, when it was the one, becomes the command.
class Parser {
 public:
  Parser() : root_("Sestina pretrains transformer language models.", "sestina") {
    root_.require_subcommand(1);
    root_.option_defaults()->always_capture_default();
    root_.set_version_flag("-V,--version", fmt::format("sestina {} ({})", version().text, version().commit));
    add_init();
    add_train();
    add_plan();
    add_eval();
    add_generate();
    add_diagnose();
    add_data();
    add_checkpoint();
    add_report();
    add_sweep();
    add_bench();
    add_info();
    add_check();
    add_examples(root_);
  }
  Command parse(std::vector<std::string> words);

 private:
  using App = CLI::App;
  template <class Arguments>
  std::shared_ptr<Arguments> begin(App* verb) {
    auto arguments = std::make_shared<Arguments>();
    verb->allow_extras();  // so that what is not known gets a suggestion
    verb->final_callback([this, arguments, verb] {
      refuse_extras(*verb);
      command_ = [arguments] { return Command(*arguments); };
    });
    return arguments;
  }
  template <class Arguments>
  std::shared_ptr<Arguments> verb(App& parent, const char* name, const char* what, App*& app) {
    app = parent.add_subcommand(name, what);
    return begin<Arguments>(app);
  }

  static void refuse_extras(const App& verb);
  static void add_files(App*, DeckArguments&, const char* what);
  static void add_deck(App*, DeckArguments&);
  static void add_json(App* app, bool& json) { app->add_flag("--json", json, "print one JSON object"); }
  template <class Arguments>
  static void add_json_lines(App* app, Arguments& a) {
    app->add_option("--text-key", a.text_key, "JSONL: the member of each line that is the text");
    app->add_option("--invalid-limit", a.invalid_limit, "JSONL: share of the lines that may be skipped as invalid")
        ->check(CLI::Range(0.0, 1.0));
  }
  static void add_source(App*, std::string& checkpoint, std::string& hf, std::string& weights);
  static CLI::Option* add_weights(App*, std::string& weights);

  void add_init();
  void add_train();
  void add_plan();
  void add_eval();
  void add_generate();
  void add_diagnose();
  void add_data();
  void add_checkpoint();
  void add_report();
  void add_sweep();
  void add_bench();
  void add_info();
  void add_check();
  void check_words(const std::vector<std::string>& words) const;
  std::string help_of(const std::vector<std::string>& words);

  App root_;
  std::vector<std::string> kokkos_;
  std::string command_line_;
  std::function<Command()> command_;
};

std::string path_of(const CLI::App& app) {
  return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* verb : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(verb->get_name());
  return names;
}

std::string meant_text(const std::string& meant) {
  return meant.empty() ? "" : fmt::format(", did you mean {}?", meant);
}

void Parser::refuse_extras(const App& verb) {
  const auto extras = verb.remaining();
  if (extras.empty()) return;
  const std::string& word = extras.front();
  std::vector<std::string> options;
  for (const auto* option : verb.get_options()) {
    for (const auto& name : option->get_lnames()) options.push_back("--" + name);
    for (const auto& name : option->get_snames()) options.push_back("-" + name);
  }
  const std::string what = word.rfind("-", 0) == 0 ? "unknown option" : "unexpected argument";
  fail(ExitCode::usage, "{}: {}, got {}{}, allowed {}; see {} -h", path_of(verb), what, word,
       meant_text(nearest(word, options)), fmt::join(options, " "), path_of(verb));
}

void Parser::add_files(App* app, DeckArguments& deck, const char* what) {
  app->add_option("-i,--input", deck.files, what)
      ->type_name("DECK")
      ->default_str("")
      ->allow_extra_args(false);  // one file after each -i
}

// Overrides are the words that are left.
void Parser::add_deck(App* app, DeckArguments& deck) {
  add_files(app, deck, "deck (TOML; every key: inputs/README.md); of several -i later ones win");
  app->add_option("overrides", deck.overrides, "section.key=value, each read as TOML; override the deck")
      ->type_name("KEY=VALUE")
      ->default_str("");
}

void Parser::add_source(App* app, std::string& checkpoint, std::string& hf, std::string& weights) {
  auto* from = app->add_option("-r,--resume", checkpoint,
                               "checkpoint folder, or a run directory (its newest complete checkpoint)");
  auto* which = add_weights(app, weights);
  app->add_option("--hf", hf, "folder with config.json and safetensors")->excludes(from)->excludes(which);
}

CLI::Option* Parser::add_weights(App* app, std::string& weights) {
  return app
      ->add_option("--weights", weights,
                   "of the checkpoint: trained, ema (train.ema_tau), average (schedule-free, its default)")
      ->check(CLI::IsMember({"trained", "ema", "average"}));
}

void Parser::add_init() {
  App* app = nullptr;
  auto a = verb<InitArguments>(root_, "init", "write a commented deck for this machine", app);
  app->add_option("name", a->name, "of the run")->required();
  app->add_option("--preset", a->preset, "size of the model")->check(CLI::IsMember(preset_names()));
  app->add_option("--data", a->data, "text, JSONL or token file, folder, or Megatron prefix");
  app->add_option("-o,--output", a->output, "deck to write (default: NAME.toml)");
}

void Parser::add_train() {
  App* app = nullptr;
  auto a = verb<TrainArguments>(root_, "train", "train a model from a deck", app);
  add_deck(app, a->deck);
  app->add_option("-r,--resume", a->resume,
                  "resume from a checkpoint: auto (newest, or a fresh start), latest, or a folder");
  app->add_option("-d,--run-dir", a->run_dir, "run directory (default: run.dir, else runs/<run.name>)");
  app->add_flag("-n,--dry-run", a->dry_run, "check the deck, print it with all defaults and exit; reads no data");
  app->add_flag("--weights-only", a->weights_only, "load only the weights of the checkpoint given with -r");
  app->add_option_function<std::string>(
         "-t,--walltime",
         [a](const std::string& text) {
           const auto seconds = parse_duration(text);
           if (!seconds || *seconds <= 0)
             fail(ExitCode::usage, "sestina train: -t: not a duration, got {}, allowed hh:mm:ss above 0", text);
           a->walltime = *seconds;
         },
         "save a checkpoint and stop before this wall time")
      ->type_name("hh:mm:ss");
  app->add_option("--progress", a->progress, "progress bar: auto = on a terminal and not under a launcher")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app->parse_complete_callback([this, a] {
    a->kokkos = kokkos_;
    a->command_line = command_line_;
  });
}

void Parser::add_plan() {
  App* app = nullptr;
  auto a =
      verb<PlanArguments>(root_, "plan", "ownership, loads, memory and time of a deck, for any number of ranks", app);
  add_deck(app, a->deck);
  app->add_option_function<std::string>(
         "--reading",
         [a](const std::string& reading) {
           if (reading != "canzona-paper")
             fail(ExitCode::usage, "sestina plan: --reading: unknown, got {}, allowed canzona-paper", reading);
           a->reading = reading;
         },
         "load ratios as the Canzona paper counts them, compared with the best")
      ->type_name("NAME");
  add_json(app, a->json);
}

void Parser::add_eval() {
  App* app = nullptr;
  auto a = verb<EvalArguments>(root_, "eval", "validation loss and bits per byte of a model", app);
  add_deck(app, a->deck);
  add_source(app, a->checkpoint, a->hf, a->weights);
  add_eval_options(*app, *a);
  add_json(app, a->json);
  app->parse_complete_callback([this, a] {
    if (a->checkpoint.empty() && a->hf.empty())
      fail(ExitCode::usage, "sestina eval: no model: give -r CHECKPOINT or --hf DIR");
    a->kokkos = kokkos_;
  });
}

void Parser::add_generate() {
  App* app = nullptr;
  auto a = verb<GenerateArguments>(root_, "generate", "continue a text", app);
  add_deck(app, a->deck);
  add_source(app, a->checkpoint, a->hf, a->weights);
  add_generate_options(*app, *a);
  add_json(app, a->json);
  app->parse_complete_callback([this, a] {
    if (a->checkpoint.empty() && a->hf.empty())
      fail(ExitCode::usage, "sestina generate: no model: give -r CHECKPOINT or --hf DIR");
    finish_prompts(*a);
    a->kokkos = kokkos_;
  });
}

void Parser::add_diagnose() {
  App* diagnose = root_.add_subcommand("diagnose", "what a model's loss looks like around its weights");
  diagnose->require_subcommand(1);
  App* app = nullptr;
  auto a = verb<HessianArguments>(*diagnose, "hessian", "(1,1)-norm in original and in rotated coordinates", app);
  add_deck(app, a->deck);
  app->add_option("-r,--resume", a->checkpoint,
                  "checkpoint folder, or a run directory (its newest complete checkpoint)");
  add_hessian_options(*app, *a);
  add_json(app, a->json);
  app->parse_complete_callback([this, a] {
    if (a->checkpoint.empty()) fail(ExitCode::usage, "sestina diagnose hessian: no model: give -r CHECKPOINT");
    a->kokkos = kokkos_;
  });
}

void Parser::add_data() {
  App* data = root_.add_subcommand("data", "prepare and inspect training data");
  data->require_subcommand(1);
  App* app = nullptr;
  const auto threads = CLI::Range(0, 4096);
  auto t = verb<DataTokenizeArguments>(*data, "tokenize", "text to Megatron token files", app);
  app->add_option("inputs", t->inputs, "text or JSONL files, gzip and zstd too, or folders")
      ->required()
      ->default_str("");
  app->add_option("-o,--output", t->output, "prefix: writes PREFIX.bin and PREFIX.idx")->required();
  app->add_option("--tokenizer", t->tokenizer, "tokenizer.json (default: bytes)");
  app->add_option("--separator", t->separator, "line between documents (default: a file is a document)");
  add_json_lines(app, *t);
  app->add_flag("!--no-end", t->end_of_document, "do not append the end token");
  app->add_option("--end-token", t->end_token,
                  "the token after each document (default: as the files next to the tokenizer say)");
  app->add_option("--threads", t->threads, "0 = all cores")->check(threads);
  add_json(app, t->json);

  auto k =
      verb<DataTrainTokenizerArguments>(*data, "train-tokenizer", "train a byte-level BPE tokenizer.json on text", app);
  app->add_option("inputs", k->inputs, "text or JSONL files, gzip and zstd too, or folders")
      ->required()
      ->default_str("");
  app->add_option("-o,--output", k->output, "tokenizer.json to write")->required();
  app->add_option("--vocab-size", k->vocab_size, "vocabulary size")->check(CLI::Range(257, 1 << 24));
  add_json_lines(app, *k);
  app->add_option("--pattern", k->pattern, "how text is split into words")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen"}));
  auto given = std::make_shared<bool>(false);  // the first one replaces the default
  app->add_option_function<std::string>(
         "--special",
         [k, given](const std::string& token) {
           if (!*given) k->special.clear();
           *given = true;
           k->special.push_back(token);
         },
         "special token; repeatable (default: <|endoftext|>)")
      ->trigger_on_parse();
  app->add_option("--threads", k->threads, "0 = all cores")->check(threads);
  add_json(app, k->json);

  const auto formats = CLI::IsMember({"megatron", "llmc", "npy", "text", "jsonl"});
  auto s = verb<DataInspectArguments>(*data, "inspect", "show what a data file holds", app);
  app->add_option("path", s->path, "token file, Megatron prefix or text")->required();
  app->add_option("--format", s->format, "default: by suffix")->check(formats);
  app->add_option("--tokenizer", s->tokenizer, "to show tokens as text");
  app->add_option("--tokens", s->tokens, "number of tokens to show")->check(CLI::Range(0, 1 << 20));
  add_json(app, s->json);

  auto v = verb<DataVerifyArguments>(*data, "verify", "check data files from end to end", app);
  add_files(app, v->deck, "deck: all of its sources");
  app->add_option("paths", v->paths, "token files, Megatron prefixes or text")->default_str("");
  app->add_option("--set", v->deck.overrides, "section.key=value for the deck")
      ->type_name("KEY=VALUE")
      ->default_str("");
  app->add_option("--format", v->format, "of the paths, default: by suffix")->check(formats);
  app->add_option("--vocab-size", v->vocab_size, "token ids must be below it, 0 = not checked")
      ->check(CLI::Range(0, 1 << 30));
  add_json(app, v->json);
  app->parse_complete_callback([v] {
    if (v->paths.empty() && v->deck.files.empty())
      fail(ExitCode::usage, "sestina data verify: nothing to check: give files, or a deck with -i");
  });
}

void Parser::add_checkpoint() {
  App* checkpoint = root_.add_subcommand("checkpoint", "list, check and convert checkpoints");
  checkpoint->require_subcommand(1);
  App* app = nullptr;
  auto l = verb<CheckpointListArguments>(*checkpoint, "list", "checkpoints of a run", app);
  app->add_option("run_dir", l->run_dir, "run directory")->required();
  add_json(app, l->json);

  auto v = verb<CheckpointVerifyArguments>(*checkpoint, "verify", "check size and digest of every file", app);
  app->add_option("path", v->path, "checkpoint, or run directory: all of its checkpoints")->required();
  app->add_flag("--full", v->full, "read every dataset too");
  add_json(app, v->json);

  auto e = verb<CheckpointExportArguments>(*checkpoint, "export", "write HF's config.json and model.safetensors", app);
  app->add_option("checkpoint", e->checkpoint, "checkpoint, or run directory (its newest complete checkpoint)")
      ->required();
  app->add_option("-o,--output", e->output, "new folder")->required();
  app->add_option("--tokenizer", e->tokenizer, "tokenizer.json to put next to it (default: that of the checkpoint)");
  add_weights(app, e->weights);
  app->add_flag("--bf16", e->bf16, "store bf16 instead of fp32");

  auto c = verb<CheckpointConvertArguments>(*checkpoint, "convert",
                                            "rewrite a checkpoint with another number of shards", app);
  app->add_option("checkpoint", c->checkpoint, "checkpoint, or run directory (its newest complete checkpoint)")
      ->required();
  app->add_option("-o,--output", c->run_dir, "run directory to write to; must not hold this step yet")->required();
  app->add_option("--shards", c->shards, "number of shard files, split by rows")->check(CLI::Range(1, 99999));
  add_json(app, c->json);

  auto m = verb<CheckpointImportArguments>(*checkpoint, "import", "convert an HF folder to a checkpoint", app);
  app->add_option("hf", m->hf, "folder with config.json and safetensors")->required();
  app->add_option("-d,--run-dir", m->run_dir, "run directory; checkpoints/step_00000000 is written there")->required();
  add_deck(app, m->deck);
}

void Parser::add_report() {
  App* app = nullptr;
  auto a = verb<ReportArguments>(root_, "report", "plots of one or more runs as one HTML page", app);
  app->add_option("run_dirs", a->run_dirs, "run directories")->required()->default_str("");
  app->add_option("-o,--output", a->output, "default: report.html, or report.csv, in the first run directory");
  auto* csv = app->add_flag("--csv", a->csv, "every value of every step as one table instead of the page");
  auto* watch = app->add_flag("--watch", a->watch, "rewrite the page while the runs go on; it reloads itself");
  watch->excludes(csv);
  app->add_option("--interval", a->interval, "seconds between updates with --watch")
      ->check(CLI::Range(0.1, 86400.0))
      ->needs(watch);
  auto* compare =
      app->add_flag("--compare", a->compare, "final losses, updates to a loss and significance instead of the page");
  compare->excludes(csv)->excludes(watch);
  app->add_option("--target", a->target, "with --compare: the loss to reach (default: the worst entry's)")
      ->needs(compare);
  app->add_option("--sigma", a->sigma, "with --compare: of a run's loss over seeds (default: pooled, else 0.0013)")
      ->check(CLI::PositiveNumber)
      ->needs(compare);
  app->add_flag("--json", a->json, "with --compare: print one JSON object")->needs(compare);
}

void Parser::add_sweep() {
  App* app = nullptr;
  auto a = verb<SweepArguments>(root_, "sweep", "train a deck at every point of a grid and find the best", app);
  add_deck(app, a->deck);
  app->add_option("-d,--dir", a->dir, "folder of the sweep: a run directory for each point, table, page, best deck")
      ->required();
  add_json(app, a->json);
}

void Parser::add_bench() {
  App* bench = root_.add_subcommand("bench", "measure");
  bench->require_subcommand(1);
  const auto fill = [this](App* app, BenchArguments* a, auto keep) {
    add_deck(app, a->deck);
    app->add_option("--steps", a->steps, "measured")->check(CLI::Range(1, 1 << 20));
    app->add_option("--warmup", a->warmup, "warm-up steps, not timed")->check(CLI::Range(0, 1 << 20));
    add_json(app, a->json);
    app->parse_complete_callback([this, keep] { keep->kokkos = kokkos_; });
  };
  const auto add_machine = [](App* app, BenchArguments* a) {
    app->add_option("--machine", a->machine, "write the measured rates as a [machine] table: a deck for plan -i");
  };
  App* app = nullptr;
  auto s = verb<BenchStepArguments>(*bench, "step", "whole training steps, on any number of ranks", app);
  fill(app, s.get(), s);
  add_machine(app, s.get());
  auto k = verb<BenchKernelsArguments>(*bench, "kernels", "the kernels of a step, one by one", app);
  fill(app, k.get(), k);
  add_machine(app, k.get());
  auto o = verb<BenchOptimizerArguments>(*bench, "optimizer", "whole update passes with random gradients", app);
  fill(app, o.get(), o);
  app->add_option("--machine", o->machine,
                  "write the measured rates and updates by shape as a [machine] table: a deck for plan -i");
  app->add_option("--shapes", o->shapes, "matrices such as 1024x1024,768x2048 instead of the model's");
  auto i = verb<BenchIoArguments>(*bench, "io", "the store of preconditioners compared with the bare disk", app);
  fill(app, i.get(), i);
  app->add_option("--size", i->mebibytes, "MiB that are moved each time")->check(CLI::Range(1, 1 << 20));
}

void Parser::add_info() {
  App* app = nullptr;
  auto a = verb<InfoArguments>(root_, "info", "versions, backends, devices, libraries", app);
  add_json(app, a->json);
  app->add_flag("--speed", a->speed,
                "measure products, memory and, under mpirun, the link between ranks; compare with the node's record");
  app->parse_complete_callback([this, a] { a->kokkos = kokkos_; });
}

void Parser::add_check() {
  App* app = nullptr;
  auto a = verb<CheckArguments>(root_, "check", "compare the kernels on this machine with their plain references", app);
  add_deck(app, a->deck);
  add_json(app, a->json);
  app->parse_complete_callback([this, a] { a->kokkos = kokkos_; });
}

// `sestina`, `sestina help`, `sestina help data tokenize`.
std::string Parser::help_of(const std::vector<std::string>& words) {
  if (words.size() > 1) check_words({words.begin() + 1, words.end()});
  const App* app = &root_;
  for (std::size_t i = 1; i < words.size() && !verb_names(*app).empty(); ++i) app = app->get_subcommand(words[i]);
  return app->help(app->get_parent() ? path_of(*app->get_parent()) : "");
}

// A verb that is wrong or missing is named before CLI11 speaks of subcommands.
void Parser::check_words(const std::vector<std::string>& words) const {
  const App* app = &root_;
  for (std::size_t i = 0;; ++i) {
    const auto verbs = verb_names(*app);
    const std::string word = i < words.size() ? words[i] : "";
    const bool answered = word == "-h" || word == "--help" || (i == 0 && (word == "-V" || word == "--version"));
    if (verbs.empty() || answered) return;
    if (std::find(verbs.begin(), verbs.end(), word) == verbs.end())
      fail(ExitCode::usage, "{}: {}{}, allowed {}; see {} -h", path_of(*app),
           word.empty() ? "no verb given" : "unknown verb, got " + word, meant_text(nearest(word, verbs)),
           fmt::join(verbs, ", "), path_of(*app));
    app = app->get_subcommand(word);
  }
}

Command Parser::parse(std::vector<std::string> words) {
  command_line_ = fmt::format("sestina {}", fmt::join(words, " "));
  if (words.empty() || words.front() == "help") return ShowText{help_of(words)};
  if (words.size() == 2 && words[0] == "manual" && words[1] == "bash") return ShowText{bash_completion(root_)};
  if (words.size() == 2 && words[0] == "manual" && words[1] == "man") return ShowText{manual_page(root_)};
  const auto is_kokkos = [](const std::string& word) { return word.rfind("--kokkos-", 0) == 0; };
  std::copy_if(words.begin(), words.end(), std::back_inserter(kokkos_), is_kokkos);
  std::erase_if(words, is_kokkos);
  check_words(words);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    root_.parse(std::move(words));
  } catch (const CLI::CallForVersion& call) {
    return ShowText{std::string(call.what()) + "\n"};
  } catch (const CLI::CallForHelp&) {
    const App* app = &root_;
    while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
    return ShowText{app->help(app->get_parent() ? path_of(*app->get_parent()) : "")};
  } catch (const CLI::ParseError& error) {
    const App* app = &root_;
    while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
    fail(ExitCode::usage, "{}: {}; see {} -h", path_of(*app), error.what(), path_of(*app));
  }
  return command_();
}

void check_overrides(const DeckArguments& deck) {
  for (const auto& word : deck.overrides)
    if (word.find('=') == word.npos)
      fail(ExitCode::usage, "not an override, got {}, allowed section.key=value{}", word,
           deck.files.empty() ? fmt::format("; a deck is given with -i {}", word) : "");
}

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  Command command = Parser().parse({argv + std::min(argc, 1), argv + argc});
  std::visit(
      [](const auto& arguments) {
        if constexpr (requires { arguments.deck.overrides; }) check_overrides(arguments.deck);
      },
      command);
  return command;
}

}  // namespace sestina
