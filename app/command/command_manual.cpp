#include "app/command/command_manual.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/base/version.hpp"

namespace sestina {
namespace {

using App = CLI::App;

struct Example {
  const char *verb, *text;
};
constexpr Example examples[] = {
    {"", "sestina init mine --data book.txt\nsestina train -i mine.toml\nsestina report runs/mine"},
    {"init", "sestina init mine --preset llama-60m --data corpus.jsonl.zst"},
    {"train",
     "sestina train -i deck.toml optimizer.kind=muon -d runs/muon\n"
     "sestina train -i deck.toml -r auto\n"
     "sestina train -i deck.toml -r runs/muon -d runs/fork --weights-only\n"
     "mpirun -n 4 sestina train -i deck.toml parallel.tp=2"},
    {"plan",
     "sestina plan -i deck.toml parallel.dp=64 parallel.tp=4\n"
     "sestina plan -i deck.toml -i machine.toml parallel.cost=seconds"},
    {"eval",
     "sestina eval -r runs/mine\nmpirun -n 4 sestina eval -r runs/mine parallel.tp=2\n"
     "sestina eval --hf folder 'data.validation=[{path=\"held_out.jsonl\"}]'"},
    {"generate", "sestina generate -r runs/mine --prompt \"Once upon a time\" --temperature 0.7"},
    {"diagnose", "sestina diagnose hessian -r runs/mine"},
    {"diagnose hessian", "sestina diagnose hessian -r runs/mine -i deck.toml --vectors 100 --json"},
    {"data", "sestina data train-tokenizer corpus.jsonl -o tokenizer.json --vocab-size 32000"},
    {"data tokenize", "sestina data tokenize corpus.jsonl.zst --tokenizer tokenizer.json -o tokens"},
    {"data train-tokenizer", "sestina data train-tokenizer texts/ -o tokenizer.json --vocab-size 4096"},
    {"data inspect", "sestina data inspect tokens --tokenizer tokenizer.json"},
    {"data verify", "sestina data verify -i deck.toml"},
    {"checkpoint", "sestina checkpoint list runs/mine"},
    {"checkpoint list", "sestina checkpoint list runs/mine --json"},
    {"checkpoint verify", "sestina checkpoint verify runs/mine --full"},
    {"checkpoint export", "sestina checkpoint export runs/mine -o hf_model --bf16"},
    {"checkpoint convert", "sestina checkpoint convert runs/mine -o runs/whole --shards 1"},
    {"checkpoint import", "sestina checkpoint import hf_model -d runs/tuned -i deck.toml"},
    {"report", "sestina report runs/*\nsestina report --compare runs/adamw_* runs/muon_* --target 3.28"},
    {"sweep",
     "sestina sweep -i deck.toml -d sweeps/lr 'sweep.grid={\"schedule.lr\"=[1e-3,3e-3,1e-2]}' 'sweep.seeds=[1,2]'"},
    {"bench", "sestina bench step -i deck.toml --json"},
    {"bench step",
     "sestina bench step -i deck.toml --steps 20\nmpirun -n 2 sestina bench step -i deck.toml --machine machine.toml"},
    {"bench kernels", "sestina bench kernels -i deck.toml"},
    {"bench optimizer",
     "sestina bench optimizer -i deck.toml optimizer.kind=muon\nsestina bench optimizer -i deck.toml --machine "
     "machine.toml"},
    {"bench io", "sestina bench io -i deck.toml optimizer.refresh.path=/nvme/scratch"},
    {"info", "sestina info --json"},
    {"check", "sestina check -i deck.toml\nmpirun -n 2 sestina check -i deck.toml --json"},
};

std::string path_below_root(const App& app) {
  if (app.get_parent() == nullptr) return "";
  const std::string parent = path_below_root(*app.get_parent());
  return parent.empty() ? app.get_name() : parent + " " + app.get_name();
}

std::string example_of(const App& app) {
  for (const Example& example : examples)
    if (path_below_root(app) == example.verb) return example.text;
  return "";
}

std::vector<const App*> verbs_of(const App& app) {
  return app.get_subcommands([](const App*) { return true; });
}

std::vector<const App*> all_apps(const App& root) {
  std::vector<const App*> apps{&root};
  for (const App* verb : verbs_of(root)) {
    const auto below = all_apps(*verb);
    apps.insert(apps.end(), below.begin(), below.end());
  }
  return apps;
}

std::vector<std::string> words_of(const App& app) {
  std::vector<std::string> words;
  for (const App* verb : verbs_of(app)) words.push_back(verb->get_name());
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) words.push_back("--" + name);
    for (const auto& name : option->get_snames()) words.push_back("-" + name);
  }
  return words;
}

// Returns the words of an option that takes one of a few, "TEXT:{auto,always,never}"; "" for other options.
std::string values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto begin = type.find('{'), end = type.find('}');
  if (begin == type.npos || end == type.npos) return "";
  std::string values = type.substr(begin + 1, end - begin - 1);
  std::replace(values.begin(), values.end(), ',', ' ');
  return values;
}

// Writes lines of a `case` on "<verb> <option before the cursor>", which say what an option with a value takes.
std::string value_cases(const App& app) {
  std::string cases;
  const std::string path = path_below_root(app);
  for (const auto* option : app.get_options()) {
    if (option->get_positional() || option->get_type_name().empty()) continue;
    std::string names;
    for (const auto& name : option->get_lnames()) names += fmt::format(" | '{} --{}'", path, name);
    for (const auto& name : option->get_snames()) names += fmt::format(" | '{} -{}'", path, name);
    const std::string values = values_of(*option);
    cases += fmt::format("    {}) words='{}' files={} ;;\n", names.substr(3), values, values.empty() ? "yes" : "no");
  }
  return cases;
}

// Roff takes a leading dot or quote as a request, and a bare hyphen as a dash.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool begins = out.empty() || out.back() == '\n';
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

// Allows a break after each comma in lists of words without blanks, which may be longer than a line.
std::string breakable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == ',') out += "\\:";
  }
  return out;
}

void add_example(App& app) {
  const std::string text = example_of(app);
  if (!text.empty() && app.get_footer().empty()) {  // some verbs have a footer of their own
    std::string shown = "Examples:\n  " + text;
    for (std::size_t at = shown.find('\n', 10); at != shown.npos; at = shown.find('\n', at + 3))
      shown.replace(at, 1, "\n  ");
    app.footer(shown);
  }
  for (App* verb : app.get_subcommands([](App*) { return true; })) add_example(*verb);
}

}  // namespace

void add_examples(App& root) { add_example(root); }

std::string bash_completion(const App& root) {
  std::string text =
      "# bash completion for sestina, made by `sestina manual bash`\n"
      "_sestina() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" verb='' files=no i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"$verb${verb:+ }${COMP_WORDS[i]}\" in\n";
  std::string names, cases, values;
  for (const App* app : all_apps(root)) {
    const std::string path = path_below_root(*app);
    if (!path.empty()) names += fmt::format("{}'{}'", names.empty() ? "" : " | ", path);
    cases +=
        fmt::format("    '{}') words='{}{}' ;;\n", path, path.empty() ? "help " : "", fmt::join(words_of(*app), " "));
    values += value_cases(*app);
  }
  text += fmt::format("      {}) verb=\"$verb${{verb:+ }}${{COMP_WORDS[i]}}\" ;;\n", names);
  text +=
      "    esac\n"
      "  done\n"
      "  local words=''\n"
      "  case \"$verb\" in\n" +
      cases +
      "  esac\n"
      "  case \"$verb ${COMP_WORDS[COMP_CWORD - 1]}\" in\n" +
      values +
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "  ((${#COMPREPLY[@]})) && [ $files = no ] || COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "}\n"
      "complete -o filenames -F _sestina sestina\n";
  return text;
}

std::string manual_page(const App& root) {
  std::string text = fmt::format(".TH SESTINA 1 \"\" \"sestina {}\" \"User Commands\"\n.SH NAME\nsestina \\- {}\n",
                                 version().text, roff("pretrain transformer language models"));
  text += ".SH SYNOPSIS\n.B sestina\n.I verb\n[options] [section.key=value ...]\n.SH DESCRIPTION\n" +
          roff(root.get_description()) +
          "\nA run is described by a deck (TOML); keys given as section.key=value override it.\n.SH VERBS\n";
  for (const App* app : all_apps(root)) {
    if (app == &root || !verbs_of(*app).empty()) continue;
    text += fmt::format(".SS sestina {}\n{}\n", roff(path_below_root(*app)), roff(app->get_description()));
    for (const auto* option : app->get_options()) {
      std::string name = option->get_name(false, true);
      if (!option->get_positional() && !option->get_type_name().empty()) name += " " + option->get_type_name();
      text += fmt::format(".TP\n.B {}\n{}\n", breakable(roff(name)), roff(option->get_description()));
    }
    if (const std::string example = example_of(*app); !example.empty())
      text += ".PP\n.EX\n" + roff(example) + "\n.EE\n";
  }
  text +=
      ".SH EXIT STATUS\n0 done, 64 usage, 65 damaged or incompatible data, 66 input missing, 69 device or library not "
      "available, 70 internal error, 73 output cannot be created, 74 input or output error, 75 stopped early with a "
      "checkpoint, 76 without one, 78 deck invalid, 79 diverged, 80 corrupted, 130 second Ctrl\\-C.\n";
  return text;
}

}  // namespace sestina
