"""Plans of many ranks from the real program: ratios counted again from names, owners and hosts alone, and decks that no
number of ranks fits, or not the number that was started."""

import json
import pathlib
import resource
import subprocess
import sys
import unittest

from sestina import BAD_DECK, Case, DONE, USAGE

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "regression" / "bench"))
import load_ratios  # noqa: E402


class Plans(Case):
    def call(self, *words, expected=DONE):
        done = subprocess.run([str(self.sestina), *words], cwd=self.work, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_ratios_are_those_of_the_owners(self):
        for model, kind, dp, tp in (("qwen3-1.7b", "muon", 5, 1), ("qwen3-4b", "soap", 32, 8), ("qwen3-8b", "shampoo", 500, 2)):
            price = load_ratios.costs(model, kind)
            for partition in load_ratios.PARTITIONS:
                with self.subTest(model=model, partition=partition):
                    answer = load_ratios.plan(str(self.sestina), model, kind, dp, tp, partition)
                    stated = answer["ratios"]["hosts" if tp > 1 else "dp"]
                    ratio = load_ratios.counted(answer, price, dp, tp)
                    self.assertAlmostEqual(ratio / stated["cost"], 1, delta=1e-6)
                    self.assertGreaterEqual(ratio * (1 + 1e-9), stated["bound"])
                    if partition == "optimal":
                        self.assertLess(ratio, stated["bound"] * 1.001)

    def test_the_deck_of_256_ranks(self):
        answer = json.loads(self.call("plan", "--json", "-i", str(ROOT / "inputs" / "plan_qwen3_32b.toml")))
        self.assertEqual(len(answer["ranks"]), 256)
        self.assertLess(answer["planning_s"], 1)
        for rank in answer["ranks"]:
            bytes_by_kind = dict(rank["bytes"])
            self.assertEqual(bytes_by_kind.pop("total"), sum(bytes_by_kind.values()))
        self.assertEqual(max(rank["bytes"]["total"] for rank in answer["ranks"]), answer["memory"]["needed_bytes"])
        self.assertEqual(answer["model"]["parameters"], 32762123264)

    def test_tiers_by_field(self):
        """Bytes of preconditioners on NVMe and next to it, of 4 layers of SOAP: d x d floats for each side of each matrix."""
        sides = 2 * [128, 128] + 2 * [64, 128] + 3 * [352, 128]
        bases = 4 * sum(4 * d * d for d in sides)
        def planned(tier):
            answer = json.loads(self.call("plan", "--json", "-i", str(ROOT / "inputs" / "tiny_soap_nvme.toml"), f"optimizer.refresh.tier={tier}"))
            return answer["ranks"][0]["bytes"]
        every, few, none = (planned(tier) for tier in ('"nvme"', '{default="nvme",basis_left="host",basis_right="host"}', '"host"'))
        self.assertEqual((every["nvme_beside"], few["nvme_beside"], none["nvme_beside"]), (0, bases, 0))
        self.assertEqual(every["nvme"] - few["nvme"], bases)
        packed = 4 * sum(-(-4 * d * (d + 1) // 2 // 4096) * 4096 for d in sides)  # copies for workers, in whole pages
        self.assertEqual(every["nvme"], 3 * bases + packed)  # factors, bases, results under way
        self.assertEqual(none["nvme"], 0)

    def test_memory_of_the_target(self):
        """A plan of many ranks is compared with the machine that the deck describes, never with this one."""
        deck = str(ROOT / "inputs" / "plan_qwen3_32b.toml")
        memory = lambda *words: json.loads(self.call("plan", "--json", "-i", deck, *words))["memory"]
        self.assertIsNone(memory()["fits"])
        need = memory()["needed_bytes"] * 1e-9
        self.assertTrue(memory(f"machine.memory={need}")["fits"])
        self.assertFalse(memory(f"machine.memory={need / 2}")["fits"])
        self.assertFalse(memory(f"machine.memory={need}", "machine.host_memory=0.01")["fits"])
        node = ("parallel.node_size=8", f"machine.host_memory={8.01 * need}")
        self.assertTrue(memory(*node)["fits"])
        self.assertFalse(memory(*node, "parallel.node_size=16")["fits"])
        self.assertIn("DOES NOT FIT a device", self.call("plan", "-i", deck, "machine.memory=1"))
        one = json.loads(self.call("plan", "--json", "-i", str(ROOT / "inputs" / "tiny_llama.toml")))
        self.assertEqual(one["memory"]["compared_with"], "this machine")

    def test_asynchronous_refreshes_run_beside_the_update(self):
        """Their work is the workers', their traffic that of the link, and the update's time is that of the update alone."""
        deck = str(ROOT / "inputs" / "tiny_llama.toml")
        words = ("optimizer.kind=soap", "machine.peak_tflops=1", "machine.memory_bandwidth=100", "optimizer.refresh.every=4")
        late = ("optimizer.refresh.mode=async", "optimizer.refresh.staleness=2", "optimizer.refresh.workers=1")
        plan = lambda *more: json.loads(self.call("plan", "--json", "-i", deck, *words, *more))
        inline, delayed = plan(), plan(*late)
        self.assertIsNone(inline["refresh_flops"])
        self.assertGreater(delayed["refresh_flops"], 0)
        self.assertLess(delayed["estimate"]["optimizer_s"], inline["estimate"]["optimizer_s"])
        gained = inline["estimate"]["optimizer_s"] - delayed["estimate"]["optimizer_s"]
        self.assertAlmostEqual(gained * 1e12 / delayed["refresh_flops"], 1, delta=1e-3)
        self.assertGreater(delayed["estimate"]["refresh_s"], 0)
        self.assertIsNone(inline["refresh_ratio"])
        self.assertEqual(delayed["refresh_ratio"], 1)
        ranks = plan(*late, "parallel.dp=8")  # 28 matrices of three sizes: some rank has more than its eighth
        self.assertAlmostEqual(ranks["refresh_flops"] * 8 / ranks["refresh_ratio"] / delayed["refresh_flops"], 1)
        self.assertGreater(ranks["refresh_ratio"], 1.05)
        self.assertIn(f"{ranks['refresh_ratio']:.4f} of the mean of all ranks",
                      self.call("plan", "-i", deck, *words, *late, "parallel.dp=8"))
        self.assertEqual(delayed["link"]["refreshes_bytes"], 0)
        device = plan(*late, "machine.memory=80", "machine.host_bandwidth=50")
        self.assertGreater(device["link"]["refreshes_bytes"], 0)
        self.assertAlmostEqual(device["estimate"]["link_s"] * 50e9 / device["link"]["refreshes_bytes"], 1, delta=1e-9)
        self.assertIsNone(device["estimate"]["refresh_s"])
        self.assertIn("of snapshots and results between device and host", self.call("plan", "-i", deck, *words, *late, "machine.memory=80"))

    def test_forms_of_weights_count_what_they_execute(self):
        deck = str(ROOT / "inputs" / "tiny_llama.toml")
        flops = lambda *words: json.loads(self.call("plan", "--json", "-i", deck, *words))["flops_per_token"]
        dense = flops()
        self.assertLess(flops("model.linear.form=lora", "model.linear.rank=1"), 0.8 * dense)
        fast, mem = (flops("model.linear.form=poet-x", "model.linear.block_size=16", f"model.linear.variant={v}") for v in ("fast", "mem"))
        self.assertNotEqual(fast, dense)
        self.assertGreater(mem, fast)

    def planned_in(self, layers, *words):
        """Processor seconds of the best of three."""
        best = float("inf")
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.call("plan", "-i", str(ROOT / "inputs" / "tiny_llama.toml"), "optimizer.kind=muon", f"model.num_hidden_layers={layers}", *words)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            best = min(best, after.ru_utime - before.ru_utime)
        return best

    def test_time_grows_with_layers_as_they_do(self):
        """So many layers that the fewer take some 50 ms: processor time of a few milliseconds is told in coarse ticks."""
        for words in ((), ("--json", "parallel.dp=2")):
            self.assertLess(self.planned_in(48000, *words), 9 * self.planned_in(12000, *words), words)

    def test_equal_loads_share_a_row(self):
        deck = str(ROOT / "inputs" / "tiny_llama.toml")
        for ranks, rows in ((4, ["ranks 0-3"]), (64, ["ranks 0-63"])):
            lines = self.call("plan", "-i", deck, "optimizer.kind=muon", f"parallel.dp={ranks}", "model.num_hidden_layers=64",
                              "train.global_batch=64").splitlines()
            self.assertEqual([" ".join(line.split()[:2]) for line in lines if line.lstrip().startswith("rank") and "#" in line], rows)

    def test_decks_of_4096_ranks(self):
        for name, tp in (("plan_qwen3_32b", 8), ("plan_llama_13b", 4)):
            calls = []
            for ranks in (64, 4096):
                answer = json.loads(self.call("plan", "--json", "-i", str(ROOT / "inputs" / f"{name}.toml"), f"parallel.dp={ranks // tp}",
                                              f"train.global_batch={ranks // tp}"))
                self.assertEqual(len(answer["ranks"]), ranks)
                self.assertLess(answer["planning_s"], 5)
                self.assertAlmostEqual(answer["ratios"]["hosts"]["cost"] / answer["ratios"]["hosts"]["bound"], 1, delta=1e-3)
                self.assertGreater(answer["estimate"]["step_s"], 0)
                calls.append(sum(c["count"] for c in answer["collectives"]))
            self.assertLessEqual(calls[1], calls[0])  # a rank talks no more often among many

    def test_layouts_that_do_not_fit(self):
        for words, text in ((["model.preset=llama-1b", "parallel.tp=8", "model.linear.form=lora"], "does not divide model.intermediate_size = 5461"),
                            (["model.preset=qwen3-8b", "parallel.tp=3"], "does not divide model.num_attention_heads = 32"),
                            (["model.preset=llama-8m", "parallel.pp=9"], "more pipeline stages than layers"),
                            (["model.preset=llama-8m", "optimizer.kind=muon", "parallel.cost=seconds"], "machine.peak_tflops")):
            self.assertIn(text, self.call("plan", *words, expected=BAD_DECK))
        self.call("plan", "-i", "deck.toml", "--reading", "mine", expected=USAGE)

    def test_running_takes_one_rank(self):
        for words, text in ((["train", "-i", "deck.toml"], "start it with mpirun -n 2"), (["bench", "kernels", "-i", "deck.toml"], "this verb runs on one rank"),
                            (["bench", "step", "-i", "deck.toml"], "start it with mpirun -n 2")):
            self.assertIn(text, self.call(*words, "parallel.dp=2", expected=BAD_DECK))
        self.assertIn("dp = 2", self.call("train", "-n", "-i", "deck.toml", "parallel.dp=2", expected=DONE))


if __name__ == "__main__":
    unittest.main()
