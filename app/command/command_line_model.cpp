#include "app/command/command_line_model.hpp"

#include <algorithm>

namespace sestina {

void add_eval_options(CLI::App& app, EvalArguments& a) {
  app.add_option("--choices", a.choices,
                 "score multiple choice instead: JSONL, lines {\"context\", \"choices\": [...], \"answer\": index}");
  app.footer(
      "Examples:\n"
      "  sestina eval -r runs/tiny_llama\n"
      "  sestina eval --hf DIR -i deck.toml data.sequence_length=512 --json\n"
      "  sestina eval --hf DIR --choices questions.jsonl");
}

void add_hessian_options(CLI::App& app, HessianArguments& a) {
  app.add_option("--vectors", a.vectors, "Cauchy vectors; rows are within about pi / (2 sqrt(vectors))")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--seed", a.seed, "seed of the vectors");
  app.footer(
      "Two gradients in double for each vector, of the first metrics.eval_batches micro-batches of the validation "
      "data\n"
      "(of the training data where none are held back). Rotated: in the bases that the optimizer left in the\n"
      "checkpoint.\n"
      "Examples:\n"
      "  sestina diagnose hessian -r runs/tiny_soap\n"
      "  sestina diagnose hessian -r runs/tiny_basis_rotation metrics.eval_batches=4 --vectors 200 --json");
}

void add_generate_options(CLI::App& app, GenerateArguments& a) {
  const auto add_prompt = [&](const char* option, bool file, const char* what) {
    app.add_option_function<std::string>(
           option,
           [&a, file](const std::string& text) {
             a.prompts.push_back({text, file || text == "-"});
           },
           what)
        ->trigger_on_parse();
  };
  add_prompt("--prompt", false, "text to continue, - reads standard input; several prompts are one batch");
  add_prompt("--prompt-file", true, "file with a text to continue, without its last line break");
  app.add_option("--tokenizer", a.tokenizer, "tokenizer.json (default: that of the model, else of the deck)");
  app.add_option("--tokens", a.tokens, "tokens to generate")->check(CLI::Range(0, 1 << 20));
  app.add_option("--samples", a.samples, "samples for each prompt")->check(CLI::Range(1, 1 << 20));
  app.add_option("--temperature", a.temperature, "0 takes the most likely token")->check(CLI::Range(0.0, 100.0));
  app.add_option("--top-k", a.top_k, "sample from the k most likely tokens, 0 = all")->check(CLI::Range(0, 1 << 30));
  app.add_option("--top-p", a.top_p, "sample from the most likely tokens with this total probability, 1 = all")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--repetition-penalty", a.repetition_penalty,
                 "divide positive logits of tokens that occurred by it and multiply negative ones, 1 = off")
      ->check(CLI::Range(0.01, 100.0));
  app.add_option_function<std::string>(
         "--stop", [&a](const std::string& text) { a.stops.push_back(text); }, "stop before this string; repeatable")
      ->trigger_on_parse();
  app.add_option("--seed", a.seed, "seed of the sampling");
  app.footer(
      "Ends at --tokens, --stop, an end token or the model's max_position_embeddings, and says which "
      "where\n"
      "it is the last. Tokens per second go to standard error. run.deterministic=true: the bits of the full window.\n"
      "On several ranks all are tensor parallel: each holds a part of every layer.\n"
      "Examples:\n"
      "  sestina generate -r runs/tiny_llama --prompt \"The kernel \"\n"
      "  sestina generate --hf DIR --prompt-file story.txt --tokens 300 --top-p 0.95 --repetition-penalty 1.1\n"
      "  sestina generate --hf DIR --prompt \"Q: \" --prompt \"A: \" --samples 4 --stop \"\\n\" --json\n"
      "  echo \"Once upon a time\" | sestina generate --hf DIR -\n"
      "  mpirun -n 4 sestina generate --hf DIR --prompt \"Once\"");
}

void finish_prompts(GenerateArguments& a) {
  auto& words = a.deck.overrides;
  if (std::erase(words, "-") > 0) a.prompts.push_back({"-", true});
  if (a.prompts.empty())
    fail(ExitCode::usage,
         "sestina generate: no prompt: give --prompt TEXT, --prompt-file FILE, or - for standard input");
  const auto reads_input = [](const GenerateArguments::Prompt& p) { return p.file && p.text == "-"; };
  if (std::count_if(a.prompts.begin(), a.prompts.end(), reads_input) > 1)
    fail(ExitCode::usage, "sestina generate: standard input (-) is one prompt, got it twice");
  if (std::find(a.stops.begin(), a.stops.end(), "") != a.stops.end())
    fail(ExitCode::usage, "sestina generate: --stop is empty; expected a text");
}

}  // namespace sestina
