"""Products and decompositions of training on the null device (NULL_DEVICE_RECORDS, operands.cpp), next to what formulas
of the model and of its optimizer say. Standard library alone.

A product is named as cuBLAS is asked for it, which computes the transpose of a row-major result: C (m, n) of a sum over
k, operations of both operands, their type and that of C. Two runs that differ in their number of updates differ in what
these updates ask for.
"""

import collections
import dataclasses
import json
import pathlib


class Failure(Exception):
    pass


def read(path):
    """Calls of a run: a counter of records, without how often."""
    calls = collections.Counter()
    for line in pathlib.Path(path).read_text().splitlines():
        record = json.loads(line)
        often = record.pop("calls")
        calls[json.dumps(record)] += often
    return calls


@dataclasses.dataclass
class Model:
    """A Llama with grouped queries, in a run with these numbers of sequences and updates."""

    hidden: int = 64
    inner: int = 176
    queries: int = 64
    keys: int = 32
    vocabulary: int = 256
    layers: int = 2
    sequence: int = 64
    global_batch: int = 8
    micro_batch: int = 8
    logit_bytes: int = 1 << 30  # most of them at a time
    narrow: bool = False  # bf16, with gradients in fp32

    def types(self):
        return ("bf16", "fp32") if self.narrow else ("fp32", "fp32")

    def matrices(self):
        """Of a layer, (rows, columns)."""
        d, f = self.hidden, self.inner
        return [(self.queries, d), (self.keys, d), (self.keys, d), (d, self.queries), (f, d), (f, d), (d, f)]

    def slices(self):
        """Rows of logits that are made at once, parts as equal as multiples of 16 can be."""
        rows, width = self.micro_batch * self.sequence, 2 if self.narrow else 4
        most = max(self.logit_bytes // (self.vocabulary * width), 1)
        parts = -(-rows // most)
        size = min(-(-(-(-rows // parts)) // 16) * 16, most) if parts > 1 else rows
        return [min(size, rows - at) for at in range(0, rows, size)]


def passes(model):
    """Of all micro-batches of an update: a layer's output, the gradient of its input, that of its weights."""
    found = collections.Counter()
    compute, sums = model.types()

    def linear(inputs, outputs, rows, often):
        found["TN", outputs, rows, inputs, compute, compute] += often
        found["NN", inputs, rows, outputs, compute, compute] += often
        found["NT", inputs, outputs, rows, compute, sums] += often

    times, rows = model.global_batch // model.micro_batch, model.micro_batch * model.sequence
    d, f, q = model.hidden, model.inner, model.queries
    for inputs, outputs in [(d, q + 2 * model.keys), (q, d), (d, 2 * f), (f, d)]:
        linear(inputs, outputs, rows, times * model.layers)
    for part in model.slices():
        linear(d, model.vocabulary, part, times)
    return found


def newton_schulz(model, steps):
    """Of each matrix X, its shorter side first: X X^T, the square of that, and the polynomial of both times X."""
    found, compute = collections.Counter(), model.types()[0]
    for shape in model.matrices():
        m, n = sorted(shape)
        for product in [("TN", m, m, n), ("TN", m, m, m), ("NN", n, m, m)]:
            found[*product, compute, compute] += steps * model.layers
    return found


def newton_schulz_calls(model, steps):
    """Of the matrices of one shape, or of its transpose, there is one call for each product of a step."""
    forms = {tuple(sorted(shape)) for shape in model.matrices()}
    return 3 * steps * len(forms)


def soap(model, precision="fp32"):
    """Of each matrix G (m, n): G G^T and G^T G; gradient and momentum into the bases of both sides, the update back."""
    found = collections.Counter()
    for m, n in model.matrices():
        found["TN", m, m, n, precision, "fp32"] += model.layers
        found["NT", n, n, m, precision, "fp32"] += model.layers
        for left, right in [("NT", "NN"), ("NT", "NN"), ("NN", "TN")]:
            found[left, n, m, m, precision, "fp32"] += model.layers
            found[right, n, m, n, precision, "fp32"] += model.layers
    return found


def soap_calls(model):
    """Of the matrices of one shape there is one call for each product of an update."""
    return 8 * len(set(model.matrices()))


def shampoo(model):
    """Of each matrix G (m, n), which is one block: G G^T and G^T G; the averaged gradient between both roots."""
    found = collections.Counter()
    for m, n in model.matrices():
        for product in [("TN", m, m, n), ("NT", n, n, m), ("NN", n, m, m), ("NN", n, m, n)]:
            found[*product, "fp32", "fp32"] += model.layers
    return found


def shampoo_calls(model):
    return 4 * len(set(model.matrices()))


def whitening(model):
    """KL-Shampoo and KL-SOAP make the products of SOAP; the gradient in the basis of the left side alone comes to them."""
    found = soap(model)
    for m, n in model.matrices():
        found["NT", n, m, m, "fp32", "fp32"] += model.layers
    return found


def whitening_calls(model):
    return 9 * len(set(model.matrices()))


def soap_refresh(model):
    """Of each side: the factor times its basis, and the orthonormal factor of that, by geqrf and orgqr."""
    products, solved = collections.Counter(), collections.Counter()
    for side in [side for shape in model.matrices() for side in shape]:
        products["NN", side, side, side, "fp32", "fp32"] += model.layers
        solved["cusolverDnSgeqrf", side] += model.layers
        solved["cusolverDnSorgqr", side] += model.layers
    return products, solved


def block_rotations(model, block):
    """Of POET-X, batches of (m, n, k, count): of each matrix both sides are turned by blocks forward and backward, and
    each block has the gradient of its own columns."""
    found, rows = collections.Counter(), model.micro_batch * model.sequence
    often = model.layers * (model.global_batch // model.micro_batch)
    for side in [side for shape in model.matrices() for side in shape]:
        for product in [("TN", block, rows, block), ("NN", block, rows, block), ("NT", block, block, rows)]:
            found[*product, side // block] += often
    return found


def batches(calls, length):
    """Batched products of which a side or the sum has this length."""
    found = collections.Counter()
    for text, often in calls.items():
        record = json.loads(text)
        sizes = [record.get(name) for name in ("m", "n", "k")]
        if record["call"] == "cublasGemmStridedBatchedEx" and length in sizes:
            found[record["operations"], *sizes, record["count"]] += often
    return found


def times(counter, factor):
    return collections.Counter({key: factor * value for key, value in counter.items()})


def operands(record):
    return {name: value for name, value in record.items() if isinstance(value, dict)}


def split(calls):
    """Products and decompositions among the records, by what is expected of them."""
    products, solved = collections.Counter(), collections.Counter()
    for text, often in calls.items():
        record = json.loads(text)
        if record["call"].startswith("cublasGemm"):
            a, b, c = (record[name]["type"] for name in "ABC")
            if a != b:
                raise Failure(f"operands of two types: {text}")
            if record["compute"] == "tf32":
                a = "tf32"
            products[record["operations"], record["m"], record["n"], record["k"], a, c] += often * record["count"]
        elif record["call"].startswith("cusolver"):
            solved[record["call"], record["n"]] += often
    return products, solved


def compare(what, found, expected):
    for key in sorted(found.keys() | expected.keys(), key=str):
        if found[key] != expected[key]:
            raise Failure(f"{what}: {' '.join(map(str, key))}: {found[key]} calls, {expected[key]} expected")
    return sum(expected.values())


def unaligned(calls):
    """Operands of products that cuBLAS' fast kernels do not take: their rows or they themselves begin between multiples
    of 16 bytes."""
    width = {"bf16": 2, "fp32": 4, "fp64": 8}
    for text in calls:
        record = json.loads(text)
        if record["call"].startswith("cublasGemm"):
            for name, x in operands(record).items():
                if x["align"] < 16 or x["ld"] * width[x["type"]] % 16 != 0:
                    yield f"{name} of {text}"


def check_all(calls, is_part=lambda record: False):
    """What holds of every call: one stream. Products: sums in fp32 (of fp64 in fp64), and the whole workspace of its
    handle. Pieces of workspaces begin at multiples of 256 bytes; is_part: a call whose operands are parts of pieces."""
    streams = {json.loads(text)["stream"] for text in calls}
    if len(streams) != 1:
        raise Failure(f"calls in {len(streams)} streams")
    for text in calls:
        record = json.loads(text)
        if record["call"].startswith("cublasGemm"):
            sums = "fp64" if record["A"]["type"] == "fp64" else "fp32"
            if record["compute"] not in (sums, "tf32") or record["workspace"] != 32 << 20:
                raise Failure(f"a product with other sums or another workspace: {text}")
        if record["call"].startswith("cudnn") or is_part(record):  # ranges of columns, and scratch that its front end divides
            continue
        for name, x in operands(record).items():
            whole = x["batch"] == 1 and x["in"] in ("sestina::workspace", "sestina::cublas")
            if whole and x["align"] < 256:
                raise Failure(f"{name} in a workspace, and not aligned to 256 bytes: {text}")


def check_attention(what, calls, model, updates, query_norms=False):
    """Calls of cuDNN: of each pass one for a layer and a micro-batch, of all its sequences, on columns of the fused rows.
    Tensors are numbered q, k, v, out, log-sum-exps, and the gradients of out, q, k, v."""
    often = updates * model.layers * (model.global_batch // model.micro_batch)
    fused = model.queries + 2 * model.keys
    normed = fused - model.keys if query_norms else fused
    widths = {1: model.queries, 2: model.keys, 3: model.keys, 4: model.queries, 6: model.queries, 7: model.queries, 8: model.keys, 9: model.keys}
    strides = {1: normed, 2: normed, 3: fused, 4: model.queries, 6: model.queries, 7: fused, 8: fused, 9: fused}
    found = collections.Counter()
    for text, count in calls.items():
        record = json.loads(text)
        if not record["call"].startswith("cudnn sdpa"):
            continue
        found[record["call"]] += count
        for number, stride in strides.items():
            x = record.get(f"tensor {number}")
            if x is None and number > 5 and record["call"] == "cudnn sdpa":
                continue
            have = (x["type"], x["rows"], x["cols"], x["ld"])
            want = ("bf16", widths[number], model.micro_batch * model.sequence, stride)
            if have != want or x["align"] < 16:
                raise Failure(f"{what}: tensor {number} is {have}, expected {want} at multiples of 16 bytes: {text}")
    return compare(what, found, {"cudnn sdpa": often, "cudnn sdpa_back": often})
