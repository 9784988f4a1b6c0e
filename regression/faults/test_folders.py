"""Folders of Hugging Face's transformers under a run: it needs one once. What is moved, edited or deleted later changes
nothing, to the bit, and what its files say goes along with the checkpoints."""

import json
import shutil
import struct

from sestina import BAD_DATA, Case

COMPANIONS = {"generation_config.json": '{"temperature": 0.6, "eos_token_id": [256, 257]}', "chat_template.jinja": "{{ messages }}\n",
              "special_tokens_map.json": '{"eos_token": "<|endoftext|>"}', "tokenizer_config.json": '{"eos_token": "<|endoftext|>", "note": "kept"}'}


def byte_tokenizer():
    """One token for each byte, in the order of GPT-2's letters for them, and an end of a text."""
    plain = [b for b in range(256) if 33 <= b < 127 or 161 <= b < 173 or 174 <= b]
    letters = sorted([chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))])
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "pre_tokenizer": level,
                       "decoder": level, "added_tokens": [{"id": 256, "content": "<|endoftext|>", "single_word": False, "lstrip": False,
                                                           "rstrip": False, "normalized": False, "special": True}],
                       "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                                 "fuse_unk": False, "byte_fallback": False, "vocab": {c: i for i, c in enumerate(letters)}, "merges": []}})


class Folders(Case):
    def setUp(self):
        super().setUp()
        self.train("base", "run.steps=2", "model.vocab_size=260", "data.tokenizer=bytes")
        self.hf = self.work / "hf"
        self.run_sestina("checkpoint", "export", self.work / "base", "-o", self.hf)
        (self.hf / "tokenizer.json").write_text(byte_tokenizer())
        for name, content in COMPANIONS.items():
            (self.hf / name).write_text(content)
        self.configure(bos_token_id=None, eos_token_id=[256, 257], pad_token_id=258)
        deck = self.deck.read_text()
        self.deck.write_text(deck[:deck.index("[model]")] + '[model]\nfrom_hf = "hf"\n' + deck[deck.index("[data]"):])

    def configure(self, **changes):
        path = self.hf / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def loss(self, *arguments):
        output = self.run_sestina("eval", *arguments, "--json")
        return json.loads(next(line for line in output.splitlines() if line.startswith("{")))["loss"]

    def spoil(self):
        """Another model where the first one was."""
        shutil.move(self.hf, self.work / "away")
        shutil.copytree(self.work / "away", self.hf)
        self.configure(rope_theta=3.0, rms_norm_eps=0.5, eos_token_id=7)
        (self.hf / "tokenizer.json").write_text("{}")
        (self.hf / "model.safetensors").write_bytes(b"nothing")

    def assert_carried(self, folder):
        for name, content in (COMPANIONS | {"tokenizer.json": byte_tokenizer()}).items():
            self.assertEqual((folder / name).read_text(), content, name)
        self.assertEqual(json.loads((folder / "config.json").read_text())["eos_token_id"], [256, 257])

    def test_the_model_belongs_to_the_run(self):
        self.train("whole", "run.steps=6")
        self.train("cut", "run.steps=3")
        before = self.loss("-r", self.work / "cut")
        for stored in ((self.work / "cut" / "deck.resolved.toml").read_text(), self.manifest(self.folder("cut", 3))["run"]["deck"]):
            self.assertNotIn("from_hf", stored)
            self.assertIn("hidden_size = 32", stored)
        self.spoil()
        self.assertEqual(self.loss("-r", self.work / "cut"), before)
        self.assertEqual(self.loss("-r", self.work / "cut", "-i", self.deck), before)
        output = self.train("cut", "-r", "auto", "run.steps=6")
        self.assertIn("model.from_hf is not read", output)
        self.assert_same_run("cut", "whole", 6)
        shutil.rmtree(self.hf)
        self.train("cut", "-r", "auto", "-i", self.deck, "run.steps=7")

    def test_a_checkpoint_elsewhere_holds_everything(self):
        self.train("run", "run.steps=3", f"checkpoint.staging_dir={self.work / 'stage'}")
        before = self.loss("-r", self.work / "run")
        alone = self.work / "alone"
        shutil.copytree(self.folder("run", 3), alone)
        shutil.rmtree(self.hf)
        shutil.rmtree(self.work / "run")
        self.assertEqual(self.loss("-r", alone), before)
        self.run_sestina("generate", "-r", alone, "--prompt", "the of", "--tokens", 3)
        self.run_sestina("checkpoint", "export", alone, "-o", self.work / "out")
        self.assert_carried(self.work / "out")
        self.assertEqual(self.loss("--hf", self.work / "out", "-i", self.deck), before)
        self.run_sestina("checkpoint", "convert", alone, "-o", self.work / "two", "--shards", 2)
        self.assert_carried(self.folder("two", 3) / "hf")
        self.run_sestina("train", "-r", alone, "-d", self.work / "fork", "run.steps=4")
        self.assert_carried(self.folder("fork", 4) / "hf")

    def test_another_tokenizer_goes_along_too(self):
        """One that the command line names takes the place of the folder's, and of the files that went with that one."""
        other = self.work / "other.json"
        other.write_text(byte_tokenizer().replace("<|endoftext|>", "<|fin|>"))
        self.train("run", "run.steps=2", f"data.tokenizer={other}")
        before = self.loss("-r", self.work / "run")
        content = other.read_text()
        other.unlink()
        shutil.rmtree(self.hf)
        self.assertEqual(self.loss("-r", self.work / "run"), before)
        self.train("run", "-r", "auto", "run.steps=3")
        carried = self.folder("run", 3) / "hf"
        self.assertEqual(sorted(p.name for p in carried.iterdir()), ["config.json", "generation_config.json", "tokenizer.json"])
        self.assertEqual((carried / "tokenizer.json").read_text(), content)

    def test_the_dry_run_prints_the_folder(self):
        self.assertIn(f'from_hf = "{self.hf}"', self.run_sestina("train", "-i", self.deck, "-n"))

    def test_an_import_carries_the_files_beside_the_weights(self):
        self.run_sestina("checkpoint", "import", self.hf, "-d", self.work / "in")
        shutil.rmtree(self.hf)
        (self.work / "in" / "tokenizer.json").unlink()
        self.run_sestina("checkpoint", "export", self.work / "in", "-o", self.work / "out")
        self.assert_carried(self.work / "out")

    def test_damage_of_a_carried_file_is_found(self):
        self.train("run", "run.steps=1")
        carried = self.folder("run", 1) / "hf"
        content = (carried / "config.json").read_bytes()
        (carried / "config.json").write_bytes(content.replace(b"4", b"5", 1))
        self.assertIn("hf/config.json: digest does not match", self.run_sestina("checkpoint", "verify", self.work / "run", expected=BAD_DATA))
        (carried / "config.json").write_bytes(content)
        (carried / "stray.json").write_text("{}")
        self.assertIn("hf/stray.json: is not listed", self.run_sestina("checkpoint", "verify", self.work / "run", expected=BAD_DATA))
        (carried / "stray.json").unlink()
        self.run_sestina("checkpoint", "verify", self.work / "run")

    def test_a_tied_config_beside_another_head(self):
        data = (self.hf / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        self.assertIn(b"lm_head.weight", data[:8 + size])
        self.configure(tie_word_embeddings=True)
        output = self.run_sestina("eval", "--hf", self.hf, "-i", self.deck, expected=BAD_DATA)
        self.assertIn("lm_head.weight", output)
        self.assertIn("tie_word_embeddings", output)

    def test_a_key_that_is_not_known(self):
        self.configure(logit_scale=0.5)
        self.assertIn("logit_scale: got 0.5", self.run_sestina("eval", "--hf", self.hf, "-i", self.deck, expected=BAD_DATA))
