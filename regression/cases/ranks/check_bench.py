"""check_bench.py SESTINA MPIEXEC DECK: `bench step` on two ranks, as training lays them out; one object, the slowest rank's times."""

import json
import subprocess
import sys
import tomllib

sestina, mpiexec, deck = sys.argv[1:]


def call(*arguments, ranks):
    launcher = [mpiexec, "-n", str(ranks)] if ranks > 1 else []
    words = [*launcher, sestina, "bench", "step", "-i", deck, "data.source=[]", "--json", "--steps", "4", "--warmup", "1", *arguments]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)  # no second line


one = call("parallel.tp=1", "parallel.pp=1", ranks=1)
assert one["ranks"] == 1 and one["reduce_s"] + one["gather_s"] < 0.01 * one["step_s"], one
for layout in (("parallel.tp=1",), ("parallel.tp=2",), ("parallel.tp=1", "parallel.pp=2"),
               ("parallel.tp=1", "parallel.pp=2", "parallel.schedule=async-1f1b", "run.audit_every=0")):
    two = call(*layout, "--machine", "machine.toml", ranks=2)
    assert two["ranks"] == 2 and two["steps"] == 4 and two["parameters"] == one["parameters"], two
    phases = sum(two[name] for name in ("forward_backward_s", "reduce_s", "optimizer_s", "gather_s"))
    assert 0 < phases < 1.5 * two["step_s"], two  # medians of parts; the rest is data
    assert two["reduce_s"] >= 0 and two["gather_s"] >= 0, two
    assert abs(two["tokens_per_s"] * two["step_s"] - 8 * 128) < 1e-6 * 8 * 128, two
    assert 0 < two["matmul_share"] <= 1.2 and two["memory_peak_bytes"] > 0, two
    # Half of the products, or less where a rank has the smaller half of the model: never all of them.
    assert two["matmul_s"] * two["matmul_tflops"] < 0.8 * one["matmul_s"] * one["matmul_tflops"], (layout, one, two)
machine = tomllib.load(open("machine.toml", "rb"))["machine"]
assert sorted(machine) == ["disk_bandwidth", "memory_bandwidth", "network_bandwidth", "peak_tflops"], machine
assert all(rate > 0 for rate in machine.values()), machine
print("one rank and two agree")
