"""Products of mixtures of experts on the null device: how many calls, and of which sizes, for experts of which some have
no rows. Standard library alone."""

import collections
import json

import products

HIDDEN, INNER, LAYERS, ROWS = 64, 48, 2, 1024  # rows: 8 sequences of 64 tokens, 2 experts each

OF_ROWS = (("NT", INNER, HIDDEN), ("NT", HIDDEN, 2 * INNER))  # gradients of weights, of some rows of all: one by one in bf16


def rows_of(experts):
    """Rows of each expert, more for each than for the one before; every fourth expert has none."""
    busy = [e for e in range(experts) if e % 4 != 2]
    rows = [0] * experts
    for place, e in enumerate(busy, 1):
        rows[e] = max(1, 2 * ROWS * place // (len(busy) * (len(busy) + 1)))
    rows[busy[-1]] += ROWS - sum(rows)
    return rows


def expected(rows, often, grouped):
    """Products of a layer's experts, as cuBLAS is asked: operations, m, n and k."""
    found = collections.Counter()
    d, f = HIDDEN, INNER
    for n in rows:
        if n > 0:
            for product in [("TN", 2 * f, n, d), ("TN", d, n, f), ("NN", f, n, d), ("NN", d, n, 2 * f)]:
                found[product] += often
            if grouped:
                found["NT", f, d, n] += often
                found["NT", d, 2 * f, n] += often
    return found


def calls_of(device, precision, experts):
    """What two updates ask of cuBLAS, and how many calls it is."""
    rows, found = rows_of(experts), []
    for steps in (2, 4):
        path = device.work / f"experts{steps}"
        device.train("tiny_moe", f"run.steps={steps}", f"model.num_experts={experts}", f"model.moe_intermediate_size={INNER}",
                     'optimizer={kind="adamw"}', "metrics.updates_every=0", "train.micro_batch=8", f"train.precision={precision}",
                     fill=63, NULL_DEVICE_RECORDS=str(path), NULL_DEVICE_ROWS=",".join(map(str, rows)))
        found.append(products.read(path))
    products.check_all(found[1], is_part=lambda record: (record.get("operations"), record.get("m"), record.get("n")) in OF_ROWS)
    calls = collections.Counter()
    groups = collections.Counter()
    for text, often in (found[1] - found[0]).items():
        record = json.loads(text)
        if record["call"].startswith("cublasGemm"):
            calls[record["call"]] += often
        if record["call"] == "cublasGemmGroupedBatchedEx":
            for m, n, k in record["products"]:
                groups[record["operations"], m, n, k] += often
    return rows, calls, groups


def check(device):
    """The products of all experts are two calls forward and four backward of a layer, however many there are. In bf16 the
    gradients of weights, of which cuBLAS has no groups, are one call for each."""
    others = set()
    for precision in ("fp32", "bf16"):
        for experts in (8, 32):
            rows, calls, groups = calls_of(device, precision, experts)
            what, grouped = f"{experts} experts in {precision}", precision == "fp32"
            of_layer = calls["cublasGemmGroupedBatchedEx"] / (2 * LAYERS)
            if of_layer != (6 if grouped else 4):
                raise products.Failure(f"{what}: {of_layer} calls of groups in a layer")
            products.compare(what, groups, expected(rows, 2 * LAYERS, grouped))
            alone = calls["cublasGemmEx"] / 2 - (0 if grouped else 2 * experts * LAYERS)
            others.add((alone, sum(calls.values()) - calls["cublasGemmEx"] - calls["cublasGemmGroupedBatchedEx"]))
            print(f"{what}: {of_layer:.0f} calls of groups in a layer, {sum(groups.values())} products of two updates as the formulas say")
    if len(others) != 1:
        raise products.Failure(f"other products depend on the number of experts: {others}")
