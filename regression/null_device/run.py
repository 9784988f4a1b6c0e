#!/usr/bin/env python3
"""Runs the CUDA program on the null device. Python 3.11, standard library alone.

  run.py --program build/cuda/bin/sestina --device FOLDER build       the null device, for this program, into FOLDER
  run.py ... decks GROUP         decks of GROUP in each precision and mode: no problem, no leak
  run.py ... ranks N             N ranks, through the host and with a device each: messages in one order
  run.py ... resume | memory     a stop and its continuation; a device that is too small
  run.py ... check               `sestina check`: that all kernels run, and what replaces a library that is wrong (kernel_checks.py)
  run.py ... lambdas ARCHIVE...  functions of headers that several objects define
  run.py ... attention           cuDNN's attention in bf16: its calls, and our own kernels where it is refused
  run.py ... experts             products of mixtures of experts: calls that do not grow with their number (experts.py)
  run.py ... unified             state in unified memory: pages are asked for once, within the budget, and nothing is copied
  run.py ... products            what cuBLAS and cuSOLVER are asked for against formulas (products.py)
  run.py ... budget NAME         the costs of a step against budgets.toml
  run.py ... report FILE         the same for all of them, as a table for regression/reports
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

import experts
import kernel_checks
import order
import products

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DONE, UNAVAILABLE, DIVERGED = 0, 69, 79
GROUPS = {
    "adamw": ["tiny_llama", "tiny_adamw_8bit", "tiny_gpt", "tiny_track3", "tiny_olmo2", "tiny_qwen3"],
    "elementwise": ["tiny_lion", "tiny_ademamix", "tiny_schedule_free"],
    "muon": ["tiny_muon", "tiny_normuon", "tiny_adamuon", "tiny_hyperball", "tiny_update_rules"],
    "bases": ["tiny_soap", "tiny_soap_blocks", "tiny_soap_bf16", "tiny_soap_muon", "tiny_kl_soap", "tiny_basis_rotation"],
    "roots": ["tiny_shampoo", "tiny_kl_shampoo"],
    "low-rank": ["tiny_galore", "tiny_apollo"],
    "workers": ["tiny_soap_async", "tiny_soap_drift"],
    "tiers": ["tiny_soap_tiers"],
    "forms": ["tiny_poet_x", "tiny_lora"],
    "pipelines": ["tiny_pipeline"],
}
MODES = [[], ["train.precision=bf16"], ["run.deterministic=true", "train.recompute=true", "train.micro_batch=2"]]
OPTIONS = {  # next to the modes, once each
    "tiny_shampoo": [["optimizer.packed=true"], ["optimizer.matmul_precision=bf16"], ["optimizer.root=eigh"], ["optimizer.root=newton"]],
    "tiny_soap_async": [["optimizer.refresh.visibility=eager"], ["optimizer.kind=shampoo"], ["optimizer.kind=galore"],
                        ["optimizer.kind=kl-soap", "optimizer.refresh.staleness=1"]],
    "tiny_soap_tiers": [["optimizer.refresh.tier=host"], ["optimizer.refresh.tier=nvme", "optimizer.refresh.visibility=eager"],
                        ["optimizer.refresh.tier={default=\"unified\", basis_left=\"nvme\"}", "optimizer.state_tier=unified"],
                        ["optimizer.kind=shampoo", "optimizer.refresh.tier=host"], ["optimizer.kind=galore", "optimizer.refresh.tier=nvme"],
                        ["optimizer.kind=kl-soap", "optimizer.refresh.tier=host", "optimizer.refresh.device_bytes=100000000"]],
    "tiny_soap": [["optimizer.basis_refresh=eigh"], ["optimizer.momentum_basis=rotated"], ["optimizer.state_tier=host"]],
    "tiny_basis_rotation": [["optimizer.momentum_basis=rotated"]],
    "tiny_muon": [["optimizer.per_head=true"], ["optimizer.qk_clip=1"]],
    "tiny_galore": [["optimizer.state_bits=8", "optimizer.projector_bits=4"],
                    ["optimizer.lazy_cosine=0.4", "optimizer.refresh.every=2"], ["optimizer.weight_bits=8"]],
    "tiny_apollo": [["optimizer.projector_bits=8", "optimizer.weight_bits=8"]],
    "tiny_poet_x": [["model.linear.variant=mem"], ["model.linear.variant=xq"], ["model.linear.sampling=fully-stochastic"],
                    ['optimizer={kind="muon"}'], ['optimizer={kind="soap"}']],
    "tiny_pipeline": [["parallel.schedule=zb-h1", "train.micro_batch=2"], ["parallel.schedule=async-1f1b"],
                      ["parallel.schedule=async-1f1b", "parallel.stash=recompute"]],
}
# As many stages as the small model has layers; blocks that divide its sides.
ALWAYS = {"tiny_pipeline": ["parallel.pp=2"], "tiny_poet_x": ["model.linear.block_size=16"]}
SMALL = ["model.hidden_size=64", "model.intermediate_size=176", "model.num_hidden_layers=2", "data.sequence_length=64",
         "metrics.eval_every=0", "checkpoint.every=0", "schedule.steps=40", "schedule.warmup_steps=4",
         "run.on_nonfinite=skip", "run.check=off"]


class Failure(Exception):
    pass


class Device:
    """One run of the program after the other, and what the null device reports of them."""

    def __init__(self, program, folder, work):
        self.program, self.folder, self.work, self.runs = program, folder, pathlib.Path(work), 0

    def train(self, deck, *options, ranks=1, devices=1, allowed=(DONE, DIVERGED), fill=0, run=None, **more):
        """Reports of all ranks: a dictionary (kind, name) -> (calls, bytes)."""
        text = ROOT / "regression/data/harbour.txt"
        command = ["train", "-i", ROOT / f"inputs/{deck}.toml", "-d", run or self.work / f"run{self.runs + 1}",
                   f'data.source=[{{format = "text", path = "{text}"}}]', *SMALL, *options]
        what = f"{deck} {' '.join(options)}, {ranks} ranks, {devices} devices, fill {fill}"
        return self.call(what, command, ranks, devices, allowed, fill, **more)

    def call(self, what, command, ranks=1, devices=1, allowed=(DONE,), fill=0, **more):
        self.runs += 1
        report, command = self.work / f"report{self.runs}", [self.program, *command]
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                        "KOKKOS_TOOLS_LIBS": f"{self.folder}/libnull_device.so", "NULL_DEVICE_REPORT": str(report),
                        "NULL_DEVICE_MESSAGES": f"{report}.messages", "NULL_DEVICE_FILL": str(fill), "NULL_DEVICE_COUNT": str(devices), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                        "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                        "XDG_CACHE_HOME": str(self.work / "cache"), **more}
        if ranks > 1:
            command = [os.environ.get("MPIEXEC", "mpiexec"), "-n", str(ranks), *command]
        done = subprocess.run([str(word) for word in command], env=surroundings, capture_output=True, text=True, timeout=240)
        if done.returncode not in allowed:
            raise Failure(f"{what}: exit {done.returncode}, allowed {allowed}\n{done.stderr[-2000:]}")
        counts = {}
        for path in [report] if ranks == 1 else [pathlib.Path(f"{report}.{rank}") for rank in range(ranks)]:
            for line in path.read_text().splitlines()[1:]:
                kind, name, calls, size = line.split("\t")
                if kind in ("problem", "leak"):
                    raise Failure(f"{what}: {kind}: {name}\n{done.stderr[-2000:]}")
                before = counts.get((kind, name), (0, 0))
                counts[kind, name] = before[0] + int(calls), before[1] + int(size)
        print(f"{what}: exit {done.returncode}, no problem, no leak", flush=True)
        if ranks > 1 and devices == ranks:
            self.order(what, [pathlib.Path(f"{report}.messages.{rank}") for rank in range(ranks)])
        return counts, done

    def order(self, what, paths):
        """Messages between devices: there are some, and they have one order."""
        try:
            print(f"{what}: {order.check(paths)} operations in one order", flush=True)
        except (order.Failure, FileNotFoundError) as failure:
            raise Failure(f"{what}: {failure}") from None


def decks(device, group):
    for deck in GROUPS[group]:
        for mode in MODES + OPTIONS.get(deck, []):
            for fill in (0, 63):  # memory of zeros, and of positive numbers
                device.train(deck, "run.steps=12", *ALWAYS.get(deck, []), *mode, fill=fill)


def grid(device):
    """Eight ranks as data-parallel x tensor-parallel x pipeline: communicators of all three axes have one order."""
    axes = [f"parallel.{axis}=2" for axis in ("dp", "tp", "pp")]
    cases = [("tiny_pipeline", [f"parallel.schedule={schedule}"]) for schedule in ("1f1b", "zb-h1", "async-1f1b")]
    cases += [("tiny_pipeline", ["parallel.schedule=interleaved", "parallel.pp=4"]), ("tiny_muon", ["optimizer.qk_clip=0"]), ("tiny_soap", [])]
    for deck, options in cases:
        device.train(deck, "run.steps=4", "train.global_batch=8", "train.micro_batch=1", "model.num_hidden_layers=4", *axes, *options,
                     ranks=8, devices=8, fill=63)


def ranks(device, n):
    if n == 8:
        return grid(device)
    layouts = [[f"parallel.dp={n}"], [f"parallel.dp={n}", "run.deterministic=true"], [f"parallel.dp={n // 2}", "parallel.tp=2"], [f"parallel.dp={n // 2}", "parallel.pp=2"]]
    if n > 2:  # sums and weights by way of one rank of each node, by small rounds too
        layouts += [[f"parallel.dp={n}", "parallel.node_size=2"], [f"parallel.dp={n // 2}", "parallel.tp=2", "parallel.node_size=2"]]
    for devices in (1, n):
        for layout in layouts:
            for deck in ("tiny_llama", "tiny_muon", "tiny_soap"):
                whole = ["optimizer.qk_clip=0"] if deck == "tiny_muon" else []  # QK-clip is for one tensor-parallel rank
                device.train(deck, "run.steps=4", "train.global_batch=8", "train.micro_batch=1", *whole, *layout, ranks=n, devices=devices)
        # Replicas that drift, in memory of their devices: made equal after refreshes and before the save.
        for layout in [[f"parallel.dp={n}"], [f"parallel.dp={n // 2}", "parallel.tp=2", "parallel.tp_update=duplicated"]]:
            device.train("tiny_replicas", "run.steps=12", "optimizer.refresh.every=4", "parallel.node_size=0", *layout, ranks=n, devices=devices, fill=63)
    pipelines(device, n)


def pipelines(device, n):
    """The messages of each schedule have one order, whatever else the ranks exchange; with tied embeddings too, and
    with an asynchronous pipeline that drains, is evaluated between updates, and has passes in flight at the end."""
    tied = "model.tie_word_embeddings=true"
    delayed = ["parallel.schedule=async-1f1b"]
    cases = [["parallel.schedule=gpipe"], ["parallel.schedule=zb-h1"], ["parallel.schedule=1f1b", tied], ["parallel.schedule=zb-h1", tied],
             ["parallel.schedule=interleaved", f"parallel.pp={2 * n}"], ["parallel.schedule=interleaved", f"parallel.pp={2 * n}", tied],
             delayed, [*delayed, "parallel.drain_every=3", "metrics.eval_every=2"], [*delayed, "parallel.stash=recompute", "parallel.delay_scale=2"]]
    if n > 2:
        cases += [["parallel.pp=2", f"parallel.tp={n // 2}", tied], ["parallel.pp=2", f"parallel.dp={n // 2}", *delayed]]
    for case in cases:
        device.train("tiny_pipeline", "run.steps=6", "train.global_batch=8", "train.micro_batch=1", f"model.num_hidden_layers={2 * n}",
                     f"parallel.pp={n}", *case, ranks=n, devices=n, fill=63)
    for steps in (3, 6):  # goes on with what was in flight
        device.train("tiny_pipeline", f"run.steps={steps}", "-r", "auto", "train.global_batch=8", "train.micro_batch=1",
                     f"model.num_hidden_layers={2 * n}", f"parallel.pp={n}", *delayed, ranks=n, devices=n, fill=63, run=device.work / "delayed")


def resume(device):
    run = device.work / "resumed"
    for deck in ("tiny_llama", "tiny_soap", "tiny_soap_async", "tiny_soap_tiers"):
        device.train(deck, "run.steps=4", run=run / deck)
        device.train(deck, "run.steps=8", "-r", "auto", run=run / deck)


def unified(device):
    """State in unified memory is used where it lies: in an update nothing of it is copied, pages of a block are asked for
    once and go back, no more at a time than the log says, and products find theirs on the device. Where all fits, nothing
    moves. A run goes on with it and without it; a device that cannot have it says so."""
    both = ["optimizer.refresh.tier=unified", "optimizer.state_tier=unified"]
    for deck, tiers in (("tiny_llama", both[1:]), ("tiny_muon", both[1:]), ("tiny_soap", both), ("tiny_shampoo", both)):
        for roomy in (False, True):
            options = tiers + (["optimizer.refresh.device_bytes=1000000000"] if roomy else [])
            (few, _), (many, done) = (device.train(deck, f"run.steps={steps}", "metrics.updates_every=0", *options, fill=63) for steps in (20, 40))
            judge_unified(f"{deck} {' '.join(options)}", few, many, done, roomy)
    run = device.work / "unified"
    for steps, tier in ((4, "unified"), (6, "device"), (8, "host"), (10, "unified")):
        device.train("tiny_soap_tiers", f"run.steps={steps}", "-r", "auto", f"optimizer.refresh.tier={tier}", f"optimizer.state_tier={tier}", run=run)
    _, done = device.train("tiny_soap", "run.steps=2", *both, allowed=(UNAVAILABLE,), NULL_DEVICE_UNIFIED="0")
    if "concurrentManagedAccess is 0); allowed: \"device\", \"host\", \"nvme\"" not in done.stderr + done.stdout:
        raise Failure(f"a device without it: the message does not say so:\n{done.stderr[-2000:]}")


def judge_unified(what, few, many, done, roomy):
    moved = {way: (many.get(("prefetch", way), (0, 0))[0] - few.get(("prefetch", way), (0, 0))[0]) / 20 for way in ("to the device", "to the host")}
    copies = {name: count[0] - few.get(("copy", name), (0, 0))[0] for (kind, name), count in many.items() if kind == "copy" and "managed" in name}
    blocks = many.get(("allocation", "cudaMallocManaged"), (0, 0))[0]
    advice = [many.get(("advice", name), (0, 0))[0] for name in ("lies in the host", "used by the device")]
    said = re.search(r"optimizer state in unified memory: .*; at most ([0-9.]+) MiB", done.stdout + done.stderr)
    peak = many["peak", "managed bytes asked for on the device"][1]
    print(f"{what}: {blocks} blocks, of which {moved['to the device']:.1f} come in an update; at most {peak / (1 << 20):g} MiB on the device")
    remote = many.get(("managed operand", "in host memory"), (0, 0))[0]
    checks = {
        "there is such memory, with advice": blocks > 0 and advice == [blocks, blocks],
        "no copies in an update": not any(copies.values()),
        "pages are asked for once": abs(moved["to the device"] - moved["to the host"]) < 0.5 and
                                    (moved["to the device"] == 0 if roomy else blocks / 2 < moved["to the device"] < 1.25 * blocks),  # what came early may have to make room
        "no more than the log says": said is not None and 0 < peak <= float(said[1]) * (1 << 20),
        "products find their operands on the device": remote == 0,
    }
    if not all(checks.values()):
        raise Failure(f"{what}: not so: {', '.join(name for name, good in checks.items() if not good)}; {moved}, {copies}, {remote} operands, "
                      f"advice {advice}, said {said and said[0]}")


def memory(device):
    """A device that is too small is said before the first step: by the check, or by the allocation that fails."""
    for size in (1 << 20, 40 << 20):
        _, done = device.train("tiny_llama", "run.steps=2", "model.hidden_size=512", allowed=(UNAVAILABLE,), NULL_DEVICE_BYTES=str(size))
        if "memory" not in done.stderr:
            raise Failure(f"{size} bytes: the message does not speak of memory:\n{done.stderr[-2000:]}")


def library_calls(device, deck, model, few, many, *options):
    """What the updates from `few` to `many` ask of the libraries, and what the whole run of `many` does."""
    found = []
    for steps in (few, many):
        path = device.work / f"records{steps}"
        device.train(deck, f"run.steps={steps}", "metrics.updates_every=0", f"train.micro_batch={model.micro_batch}",
                     f"train.global_batch={model.global_batch}", f"model.intermediate_size={model.inner}",
                     f"model.vocab_size={model.vocabulary}", f"train.precision={'bf16' if model.narrow else 'fp32'}",
                     *options, fill=63, NULL_DEVICE_RECORDS=str(path))
        found.append(products.read(path))
    products.check_all(found[1])
    return found[1] - found[0], found[1]


def library_products(device):
    """Passes of several micro-batches and slices of logits with Newton-Schulz iterations, SOAP with two refreshes, and
    POET-X with batches of blocks."""
    model = products.Model(vocabulary=100352, global_batch=24, logit_bytes=64 << 20, narrow=True)
    calls, whole = library_calls(device, "tiny_muon", model, 2, 4, "optimizer.qk_clip=0", f"train.logit_bytes={model.logit_bytes}")
    found, solved = products.split(calls)
    per_update = products.passes(model) + products.newton_schulz(model, steps=5)
    n = products.compare("muon", found, products.times(per_update, 2)) + products.compare("muon", solved, {})
    print(f"muon: {n} products of two updates, {len(model.slices())} slices of logits, as the formulas say")
    if bad := next(products.unaligned(whole), None):
        raise Failure(f"muon: not aligned to 16 bytes: {bad}")

    library_batches(device)
    model = products.Model(micro_batch=2)
    calls, whole = library_calls(device, "tiny_soap", model, 12, 32)
    found, solved = products.split(calls)
    refresh, solutions = products.soap_refresh(model)
    per_update = products.passes(model) + products.soap(model)
    n = products.compare("soap", found, products.times(per_update, 20) + products.times(refresh, 2))
    n += products.compare("soap", solved, products.times(solutions, 2))
    print(f"soap: {n} products and decompositions of twenty updates, two of them with a refresh, as the formulas say")
    if bad := next(products.unaligned(whole), None):
        raise Failure(f"soap: not aligned to 16 bytes: {bad}")
    for precision in ("tf32", "bf16"):
        calls, _ = library_calls(device, "tiny_soap", model, 2, 4, f"optimizer.matmul_precision={precision}", "optimizer.refresh.every=100")
        found, _ = products.split(calls)
        expected = products.times(products.passes(model) + products.soap(model, precision), 2)
        print(f"soap in {precision}: {products.compare(f'soap in {precision}', found, expected)} products of two updates")

    model = products.Model()
    calls, _ = library_calls(device, "tiny_poet_x", model, 2, 4, "model.linear.block_size=16")
    found = products.batches(calls, model.micro_batch * model.sequence)
    n = products.compare("poet-x", found, products.times(products.block_rotations(model, 16), 2))
    print(f"poet-x: {n} batches of block rotations of two updates, as the formulas say")

    model = products.Model(vocabulary=100352)  # all logits of a micro-batch at once, where a host has four slices
    calls, _ = library_calls(device, "tiny_llama", model, 2, 4)
    n = products.compare("adamw", products.split(calls)[0], products.times(products.passes(model), 2))
    print(f"adamw: {n} products of two updates, {len(model.slices())} slice of logits, as the formulas say")

    # Widths that are no multiples of 8: in bf16 weights, their gradients and Newton-Schulz go by way of rows that are.
    model = products.Model(inner=173, narrow=True)
    calls, whole = library_calls(device, "tiny_muon", model, 2, 4, "optimizer.qk_clip=0")
    n = products.compare("odd rows", products.split(calls)[0], products.times(products.passes(model) + products.newton_schulz(model, steps=5), 2))
    if bad := next(products.unaligned(whole), None):
        raise Failure(f"odd rows: not aligned to 16 bytes: {bad}")
    print(f"odd rows: {n} products of two updates, all of them aligned")
    _, whole = library_calls(device, "tiny_llama", products.Model(inner=173), 1, 2)
    if not any("173" in text for text in products.unaligned(whole)):
        raise Failure("rows of 173 numbers of fp32 are recorded as aligned")


MUON_KERNELS = {"momenta", "ns_norms", "ns_normalize", "ns_polynomial", "muon_move"}
SOAP_KERNELS = {"average_momenta", "rotated_adams", "move_weights"}
SHAMPOO_KERNELS = {"filter", "graft_squares", "graft_factors", "move_weights"}
KL_KERNELS = {"inverse_roots", "average_momenta", "line_squares", "scale_lines", "move_weights"}


def library_batches(device):
    """Muon, SOAP, Shampoo and the KL kinds update all matrices of a shape together: twelve layers take no more kernels and
    products than one. With all that they need of scratch they are one batch. In bf16 SOAP's matrices go one by one."""
    model = products.Model(keys=64, layers=12)
    layers = ["model.num_hidden_layers=12", "model.num_key_value_heads=4"]
    muon = products.newton_schulz(model, steps=5)
    check_batch(device, "tiny_muon", model, muon, products.newton_schulz_calls(model, steps=5), MUON_KERNELS, 40,
                [*layers, "optimizer.qk_clip=0"])
    for precision in ("fp32", "tf32"):
        check_batch(device, "tiny_soap", model, products.soap(model, precision), products.soap_calls(model), SOAP_KERNELS, 27,
                    [*layers, "optimizer.refresh.every=100", f"optimizer.matmul_precision={precision}"])
    # Roots come with update 2.
    check_batch(device, "tiny_shampoo", model, products.shampoo(model), products.shampoo_calls(model), SHAMPOO_KERNELS, 17,
                [*layers, "optimizer.refresh.every=100", "optimizer.start_step=2"])
    for deck, own, most in (("tiny_kl_shampoo", {"scale_damped"}, 34), ("tiny_kl_soap", {"average_squares", "divide_by_root"}, 35)):
        check_batch(device, deck, model, products.whitening(model), products.whitening_calls(model), KL_KERNELS | own, most,
                    [*layers, "optimizer.refresh.every=100"])


def check_batch(device, deck, model, expected, often, names, most, options):
    """An update makes the products that are expected, by so many calls, and has these kernels, and of both at most so many."""
    calls, _ = library_calls(device, deck, model, 2, 4, *options)
    found, _ = products.split(calls)
    what = f"{deck} of twelve layers"
    products.compare(what, found, products.times(products.passes(model) + expected, 2))
    called = sum(count for text, count in calls.items() if set(products.split({text: 1})[0]) & set(expected)) / 2
    kernels = collections.Counter()
    for steps, sign in ((2, -1), (4, 1)):
        counts, _ = device.train(deck, f"run.steps={steps}", "metrics.updates_every=0", *options, fill=63)
        for (kind, name), count in counts.items():
            if kind == "launch":
                kernels[name.removeprefix("for: ").split()[0]] += sign * count[0] / 2
    alone = ("ns_", "momentum", "mirror", "average_", "rotated_adam", "adam_direction", "round_matrix", "move_weight", "graft_",
             "row_squares", "column_", "scale_", "identity")
    update = {name: kernels[name] for name in kernels if kernels[name] and (name in names or name.startswith(alone))}
    if called != often or set(update) != names or called + sum(update.values()) > most:
        raise Failure(f"{what}: {called} products, {often} expected; kernels {update}")
    print(f"{what}: {called:.0f} products and {sum(update.values()):.0f} kernels of an update")


def library_attention(device):
    """In bf16 cuDNN computes both passes of every layer and micro-batch, from where q, k and v lie; our own kernels do
    where it cannot, or is not there."""
    for deck, model, normed in [("tiny_llama", products.Model(narrow=True, micro_batch=2), False),
                                ("tiny_qwen3", products.Model(queries=128, keys=64, narrow=True, micro_batch=4), True)]:
        calls, _ = library_calls(device, deck, model, 2, 4)
        n = products.check_attention(deck, calls, model, 2, normed)
        print(f"{deck}: {n} calls of attention of two updates, on the fused rows")

    def run(deck, *options, **more):
        counts, done = device.train(deck, "run.steps=4", "train.precision=bf16", *options, fill=63, **more)
        kernels = {name.removeprefix("for: ").split()[0] for kind, name in counts if kind == "launch"}
        calls = {name.removeprefix("cudnn ") for kind, name in counts if kind == "library" and name.startswith("cudnn sdpa")}
        return {name for name in kernels if name.startswith("attention")}, calls, counts, done.stdout + done.stderr

    own, calls, counts, said = run("tiny_llama")
    if own or calls != {"sdpa", "sdpa_back"} or "attention  cuDNN" not in said:
        raise Failure(f"bf16: kernels {own}, calls {calls}:\n{said}")
    plain, none, others, said = run("tiny_llama", NULL_DEVICE_CUDNN="0")
    if len(plain) < 4 or none or "attention  our own kernels: cuDNN" not in said:
        raise Failure(f"a cuDNN that does not start: kernels {plain}, calls {none}:\n{said}")
    copies = [sum(count[0] for (kind, _), count in x.items() if kind == "copy") for x in (counts, others)]
    if copies[0] != copies[1]:
        raise Failure(f"{copies[0]} copies with cuDNN, {copies[1]} without")
    long = ["train.micro_batch=16", "train.global_batch=16", "data.sequence_length=2048", "model.max_position_embeddings=2048"]
    few, many = (run("tiny_llama", *long, f"run.steps={steps}")[2] for steps in (2, 4))
    often = [(many["library", f"cudnn {name}"][0] - few["library", f"cudnn {name}"][0]) / 2 for name in ("sdpa", "sdpa_back")]
    if often != [2, 4]:  # of two layers
        raise Failure(f"scratch of 512 MiB and more: {often[0]} calls forward, {often[1]} backward in two halves")
    heads = ["model.num_attention_heads=16", "model.num_key_value_heads=8"]  # of 4 elements
    for what, deck, options, back in [("documents", "tiny_llama", ["data.mask_documents=true"], False), ("heads of 4", "tiny_llama", heads, False),
                                      ("qk-clip", "tiny_muon", ["optimizer.qk_clip=1"], True)]:
        own, calls, _, said = run(deck, *options)
        if "attention" not in own or calls != ({"sdpa_back"} if back else set()):
            raise Failure(f"{what}: kernels {own}, calls {calls}:\n{said}")
    print("our own kernels for documents, heads of 4 elements, and the forward pass of QK-clip")


def cost(device, budget):
    """Of one update: the difference between 40 and 20 updates, divided by 20. In memory that is not zero: a gradient of
    zeros starts no method with bases."""
    ranks, batch = budget.get("ranks", 1), budget.get("micro_batch", 8)
    more = {"NULL_DEVICE_ROWS": ",".join(map(str, experts.rows_of(budget["experts"])))} if "experts" in budget else {}
    few, many = (device.train(budget["deck"], f"run.steps={steps}", f"train.micro_batch={batch}",
                              "metrics.updates_every=0",  # a measured update reads its sums
                              *budget.get("options", []), fill=63,
                              ranks=ranks, devices=ranks, **more)[0] for steps in (20, 40))

    def per_step(chosen, place=0):  # of a rank
        return sum((count[place] - few.get(key, (0, 0))[place]) / 20 / ranks for key, count in many.items() if chosen(*key))

    return {
        "launches": per_step(lambda kind, name: kind == "launch"),
        "products": per_step(lambda kind, name: kind == "library" and name.startswith("cublasGemm")),
        "decompositions": per_step(lambda kind, name: kind == "library" and "syev" in name and "Size" not in name),
        "waits": per_step(lambda kind, name: kind == "sync"),
        "pageable": per_step(lambda kind, name: kind == "copy" and "pageable" in name, place=1),
        # Kokkos asks for 0 bytes of scratch where a team needs none; the runtime gives nothing for that.
        "allocations": per_step(lambda kind, name: kind == "allocation" and "of 0 bytes" not in name),
    }


def budgets():
    return tomllib.loads((HERE / "budgets.toml").read_text())


def budget(device, name):
    allowed = budgets()[name]
    found = cost(device, allowed)
    found = {key: value for key, value in found.items() if key in allowed}
    for key, value in found.items():
        print(f"{name}: {key} of a step {value:.1f}, budget {allowed[key]}")
    over = [key for key, value in found.items() if value > allowed[key]]
    if over or not 0 < found["waits"]:
        raise Failure(f"{name}: over budget: {', '.join(over) or 'nothing was counted'}")


BUCKETS = 4  # of two layers: embedding, each layer, head


def collectives(device):
    """Where bits may be those of NCCL, its sums take gradients to their owners, and its gathers bring weights back: an
    operation of each for a bucket. In deterministic runs messages do, which are added up in a tree."""
    for deterministic in ("false", "true"):
        few, many = (device.train("tiny_muon", f"run.steps={steps}", "parallel.dp=2", "train.micro_batch=4", "metrics.updates_every=0",
                                  "optimizer.qk_clip=0", f"run.deterministic={deterministic}", ranks=2, devices=2, fill=63)[0] for steps in (20, 40))
        calls = {name.removeprefix("nccl"): (count[0] - few.get((kind, name), (0, 0))[0]) / 40  # of a rank and a step
                 for (kind, name), count in many.items() if kind == "library" and name.startswith("nccl") and count != few.get((kind, name))}
        print(f"run.deterministic = {deterministic}: {calls}")
        messages, whole = {"Send", "Recv"} & calls.keys(), calls.keys() & {"ReduceScatter", "Reduce", "AllGather", "Broadcast"}
        operations = calls["GroupStart"]
        if deterministic == "true" and (whole or not messages) or deterministic == "false" and (messages or not whole):
            raise Failure(f"run.deterministic = {deterministic}: {calls}")
        if deterministic == "false" and operations != 2 * BUCKETS:
            raise Failure(f"{operations} operations of a step, {BUCKETS} buckets")


def report(device, path):
    columns = ["launches", "waits", "pageable", "allocations"]
    lines = ["# What a training step of the CUDA program costs its host", "",
             "Measured on the null device (regression/null_device), budget in brackets: `run.py report`.", "",
             "| run | launches | host waits | pageable bytes | allocations |", "|---|---|---|---|---|"]
    for name, allowed in budgets().items():
        found = cost(device, allowed)
        lines.append(f"| {name} | " + " | ".join(f"{found[key]:.1f} ({allowed[key]})" for key in columns) + " |")
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("what", choices=["build", "decks", "ranks", "resume", "memory", "unified", "check", "lambdas", "products", "attention", "experts", "collectives", "budget", "report"])
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.what in ("build", "lambdas"):
        script = [HERE / "build.sh", given.device, given.program] if given.what == "build" else [HERE / "shared_lambdas.sh", *given.names]
        sys.exit(subprocess.run(script).returncode)
    with tempfile.TemporaryDirectory() as work:
        device = Device(given.program, given.device, work)
        try:
            if given.what == "decks":
                decks(device, given.names[0])
            elif given.what == "ranks":
                ranks(device, int(given.names[0]))
            elif given.what == "budget":
                budget(device, given.names[0])
            elif given.what == "report":
                report(device, given.names[0])
            else:
                {"resume": resume, "memory": memory, "unified": unified, "check": kernel_checks.check, "products": library_products, "attention": library_attention, "experts": experts.check, "collectives": collectives}[given.what](device)
        except (Failure, products.Failure) as failure:
            sys.exit(str(failure))


if __name__ == "__main__":
    main()
