"""Faults of what uses a model: `generate` and `eval` as a user calls them, their numbers next to a second computation of the
model in plain Python."""

import json
import math
import struct
import unittest

from sestina import BAD_DATA, Case, INPUT_MISSING, USAGE


class Llama:
    """The exported model, computed token by token from its own files."""

    def __init__(self, folder):
        data = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        self.tensors = {}
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            values = struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])
            width = entry["shape"][-1]
            rows = [values[i:i + width] for i in range(0, len(values), width)]
            self.tensors[name] = rows if len(entry["shape"]) == 2 else values
        self.config = json.loads((folder / "config.json").read_text())

    @staticmethod
    def product(weight, x):
        return [sum(a * b for a, b in zip(row, x)) for row in weight]

    def norm(self, x, weight):
        scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + self.config["rms_norm_eps"])
        return [v * scale * w for v, w in zip(x, weight)]

    def turn(self, head, position):
        half = len(head) // 2
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        angles = [position * theta ** (-i / half) for i in range(half)]
        low = [head[i] * math.cos(a) - head[i + half] * math.sin(a) for i, a in enumerate(angles)]
        high = [head[i + half] * math.cos(a) + head[i] * math.sin(a) for i, a in enumerate(angles)]
        return low + high

    def log_probabilities(self, ids):
        """For each position those of all tokens to come next."""
        t, c = self.tensors, self.config
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        h = c.get("head_dim") or c["hidden_size"] // heads
        cut = lambda x: [x[i:i + h] for i in range(0, len(x), h)]
        cache = [([], []) for _ in range(c["num_hidden_layers"])]
        results = []
        for position, token in enumerate(ids):
            x = list(t["model.embed_tokens.weight"][token])
            for layer, (keys, values) in enumerate(cache):
                name = f"model.layers.{layer}."
                y = self.norm(x, t[name + "input_layernorm.weight"])
                q = [self.turn(head, position) for head in cut(self.product(t[name + "self_attn.q_proj.weight"], y))]
                keys.append([self.turn(head, position) for head in cut(self.product(t[name + "self_attn.k_proj.weight"], y))])
                values.append(cut(self.product(t[name + "self_attn.v_proj.weight"], y)))
                attended = []
                for i, query in enumerate(q):
                    group = i * kv_heads // heads
                    weights = [math.exp(sum(a * b for a, b in zip(query, key[group])) / math.sqrt(h)) for key in keys]
                    total = sum(weights)
                    attended += [sum(w * v[group][d] for w, v in zip(weights, values)) / total for d in range(h)]
                x = [a + b for a, b in zip(x, self.product(t[name + "self_attn.o_proj.weight"], attended))]
                y = self.norm(x, t[name + "post_attention_layernorm.weight"])
                gate, up = (self.product(t[name + f"mlp.{part}_proj.weight"], y) for part in ("gate", "up"))
                inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
                x = [a + b for a, b in zip(x, self.product(t[name + "mlp.down_proj.weight"], inner))]
            logits = self.product(t["lm_head.weight"], self.norm(x, t["model.norm.weight"]))
            total = math.log(sum(math.exp(z) for z in logits))
            results.append([z - total for z in logits])
        return results


class Use(Case):
    def setUp(self):
        super().setUp()
        self.train("run", "run.steps=40", "schedule.lr=1e-2")
        self.run_sestina("checkpoint", "export", self.work / "run", "-o", self.work / "hf")

    def json_of(self, *arguments, **options):
        output = self.run_sestina(*arguments, "--json", **options)
        return json.loads(next(line for line in output.splitlines() if line.startswith("{")))

    def generate(self, *arguments):
        return self.json_of("generate", "-r", self.work / "run", *arguments)

    def test_generate(self):
        prompt = "the of "
        greedy = self.generate("--prompt", prompt, "--tokens", 12, "--temperature", 0)
        self.assertEqual(greedy["text"][:len(prompt)], prompt)
        self.assertEqual(len(greedy["ids"]), len(prompt) + 12)
        self.assertGreater(greedy["tokens_per_s"], 0)
        following = Llama(self.work / "hf").log_probabilities(greedy["ids"][:-1])[len(prompt) - 1:]
        for token, row in zip(greedy["ids"][len(prompt):], following):
            self.assertLess(max(row) - row[token], 1e-4)  # the most likely one, to rounding
        # A longer prompt goes on in the same way: what is cached does not matter.
        longer = self.generate("--prompt", greedy["text"][:-5], "--tokens", 5, "--temperature", 0)
        self.assertEqual(longer["ids"], greedy["ids"])

        # The same prompt by three ways; text goes to standard output, speed is told.
        (self.work / "prompt.txt").write_text(prompt + "\n")
        ways = [self.run_sestina("generate", "-r", self.work / "run", *way, "--tokens", 12, "--temperature", 0)
                for way in (("--prompt", prompt), ("--prompt-file", self.work / "prompt.txt"))]
        child = self.start("generate", "-r", self.work / "run", "-", "--tokens", 12, "--temperature", 0, stdin=-1)
        ways.append(child.communicate(prompt + "\n")[0])
        for output in ways:
            self.assertIn(greedy["text"], output)
            self.assertIn("tokens/s", output)

    def test_generate_several(self):
        words = ("--tokens", 10, "--seed", 4, "--top-k", 50, "--top-p", 0.95, "--repetition-penalty", 1.1)
        both = self.generate("--prompt", "the ", "--prompt", "some of ", "--samples", 3, *words)["sequences"]
        self.assertEqual([(s["prompt"], s["sample"]) for s in both], [(p, s) for p in (0, 1) for s in (0, 1, 2)])
        self.assertEqual(len({s["text"] for s in both}), 6)
        alone = self.generate("--prompt", "some of ", "--samples", 3, *words)["sequences"]
        self.assertEqual([s["ids"] for s in alone], [s["ids"] for s in both[3:]])
        self.assertEqual(self.generate("--prompt", "the ", *words)["ids"], both[0]["ids"])
        self.assertNotEqual(self.generate("--prompt", "the ", *words[:2], "--seed", 5, *words[4:])["ids"], both[0]["ids"])
        output = self.run_sestina("generate", "-r", self.work / "run", "--prompt", "the ", "--samples", 2, *words)
        self.assertIn("== prompt 1, sample 2\nthe ", output)

    def test_generate_ends(self):
        whole = self.generate("--prompt", "the ", "--tokens", 30, "--temperature", 0)
        stop = whole["text"][9:12]
        stopped = self.generate("--prompt", "the ", "--tokens", 30, "--temperature", 0, "--stop", stop, "--stop", "\x01")
        self.assertEqual(stopped["sequences"][0]["finish"], "stop")
        self.assertEqual(stopped["text"], whole["text"][:whole["text"].index(stop, 4)])
        # Beyond the 32 tokens of training, up to the model's 64 positions.
        full = self.run_sestina("generate", "-r", self.work / "run", "--prompt", "the ", "--tokens", 100)
        self.assertIn("the model's 64 positions", full)
        full = self.generate("--prompt", "the ", "--tokens", 100)
        self.assertEqual((len(full["ids"]), full["sequences"][0]["finish"]), (64, "context"))
        self.assertIn("64 positions", self.run_sestina("generate", "-r", self.work / "run", "--prompt", "x" * 65, expected=BAD_DATA))
        self.run_sestina("generate", "-r", self.work / "run", expected=USAGE)
        self.run_sestina("generate", "-r", self.work / "run", "--prompt-file", "nowhere", expected=INPUT_MISSING)

    def test_eval(self):
        text = (self.work / "text.txt").read_bytes()[:4 * 32 + 1]
        (self.work / "held.txt").write_bytes(text)
        words = ("eval", "-r", self.work / "run", 'data.validation=[{format="text",path="held.txt"}]', "metrics.eval_batches=1")
        (self.work / "eval.toml").write_text("")  # paths are those next to it
        result = self.json_of(*words, "-i", self.work / "eval.toml")
        model, means = Llama(self.work / "hf"), []
        for i in range(4):
            window = list(text[32 * i:32 * i + 33])
            rows = model.log_probabilities(window[:-1])
            means.append(-sum(row[token] for row, token in zip(rows, window[1:])) / 32)
        loss = sum(means) / 4
        self.assertEqual((result["tokens"], result["windows"]), (128, 4))
        self.assertAlmostEqual(result["loss"], loss, delta=2e-5)
        self.assertAlmostEqual(result["perplexity"], math.exp(loss), delta=1e-3)
        self.assertAlmostEqual(result["bits_per_byte"], loss / math.log(2), delta=1e-4)
        self.assertAlmostEqual(result["loss_error"], math.sqrt(sum((m - loss) ** 2 for m in means) / 3 / 4), delta=2e-5)
        output = self.run_sestina(*words, "-i", self.work / "eval.toml")
        self.assertIn(f"loss {result['loss']:.6f} +- {result['loss_error']:.6f}", output)
        self.assertIn("perplexity", output)

    def test_eval_choices(self):
        questions = [("the of ", ["to", "and", "xyzzy"], 2), ("as his ", ["they", "at"], 1), ("one had ", ["not", "but what"], 0)]
        path = self.work / "questions.jsonl"
        path.write_text("".join(json.dumps({"context": c, "choices": list(o), "answer": a}) + "\n" for c, o, a in questions))
        result = self.json_of("eval", "-r", self.work / "run", "--choices", path)
        model, right, normalised = Llama(self.work / "hf"), [], []
        for context, options, answer in questions:
            scores = []
            for option in options:
                ids = list((context + option).encode())
                rows = model.log_probabilities(ids[:-1])
                scores.append(sum(rows[i - 1][ids[i]] for i in range(len(context), len(ids))))
            right.append(scores.index(max(scores)) == answer)
            per_byte = [score / len(option) for score, option in zip(scores, options)]
            normalised.append(per_byte.index(max(per_byte)) == answer)
        for key, values in (("accuracy", right), ("accuracy_normalised", normalised)):
            mean = sum(values) / 3
            self.assertAlmostEqual(result[key], mean)
            self.assertAlmostEqual(result[key + "_error"], math.sqrt(mean * (1 - mean) / 2))
        self.assertEqual(result["questions"], 3)
        self.assertIn("3 questions", self.run_sestina("eval", "-r", self.work / "run", "--choices", path))
        path.write_text(path.read_text() + '{"context": "a", "choices": ["b"], "answer": 0}\n')
        self.assertIn(f"{path}:4: ", self.run_sestina("eval", "-r", self.work / "run", "--choices", path, expected=BAD_DATA))
        self.run_sestina("eval", "-r", self.work / "run", "--choices", "nowhere.jsonl", expected=INPUT_MISSING)


if __name__ == "__main__":
    unittest.main()
