#!/usr/bin/env python3
"""Begin and end tokens of Hugging Face folders: where they are named, and that generate, eval, data tokenize, import and
export agree on them. The folders are written here: models of one layer whose next token is chosen by hand."""
import array
import json
import pathlib
import shutil
import struct
import tempfile

from user import answer, run

BEGIN, END, TURN, VOCABULARY = 256, 257, 258, 272  # the tokenizer ends at 259
ONE_BYTE = [b for b in range(256) if 33 <= b < 127 or 161 <= b < 173 or 174 <= b]
REST = [b for b in range(256) if b not in ONE_BYTE]
SYMBOL = {**{b: chr(b) for b in ONE_BYTE}, **{b: chr(256 + i) for i, b in enumerate(REST)}}  # of byte-level BPE


def write_tensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += array.array("f", values).tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_model(folder, follows, otherwise, **config):
    """After token a comes follows[a], after others `otherwise`: a's embedding is a unit vector that the head reads."""
    hidden, heads, inner = 16, 2, 8
    folder.mkdir()
    places = {token: 1 + i for i, token in enumerate(follows)}  # the others are at place 0
    assert len(places) < hidden
    embedding, head = [0.0] * (VOCABULARY * hidden), [0.0] * (VOCABULARY * hidden)
    for token in range(VOCABULARY):
        embedding[token * hidden + places.get(token, 0)] = 1
    head[otherwise * hidden] = 10
    for token, place in places.items():
        head[follows[token] * hidden + place] = 10
    layer = "model.layers.0."
    shapes = {f"{layer}self_attn.{n}_proj.weight": [hidden, hidden] for n in "qkvo"}
    shapes |= {f"{layer}mlp.gate_proj.weight": [inner, hidden], f"{layer}mlp.up_proj.weight": [inner, hidden],
               f"{layer}mlp.down_proj.weight": [hidden, inner]}
    tensors = {name: (shape, [0.0] * (shape[0] * shape[1])) for name, shape in shapes.items()}
    for name in (layer + "input_layernorm", layer + "post_attention_layernorm", "model.norm"):
        tensors[name + ".weight"] = ([hidden], [1.0] * hidden)
    tensors["model.embed_tokens.weight"] = ([VOCABULARY, hidden], embedding)
    tensors["lm_head.weight"] = ([VOCABULARY, hidden], head)
    write_tensors(folder / "model.safetensors", tensors)
    sizes = {"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1,
             "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": hidden // heads,
             "vocab_size": VOCABULARY, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
             "tie_word_embeddings": False, "hidden_act": "silu"}
    write(folder, "config", {**sizes, **config})


def write(folder, name, content):
    (folder / f"{name}.json").write_text(json.dumps(content))


def write_tokenizer(folder, names, begins=False):
    """Bytes, and the named tokens from id 256 on."""
    vocabulary = {SYMBOL[b]: b for b in range(256)}
    added = [{"id": 256 + i, "content": n, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for i, n in enumerate(names)]
    template = {"type": "TemplateProcessing", "pair": [],
                "single": [{"SpecialToken": {"id": names[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {names[0]: {"id": names[0], "ids": [BEGIN], "tokens": [names[0]]}}}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write(folder, "tokenizer", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "post_processor": {"type": "Sequence", "processors": [byte_level, template]} if begins else None,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary, "merges": []}})


def generated(folder, prompt, *words, tokens=6, temperature=0):
    return answer("generate", "--hf", folder, "--prompt", prompt, "--tokens", tokens, "--temperature", temperature, "--json",
                  *words)["sequences"][0]


def check_ends(work):
    folder = work / "ends"
    write_model(folder, {}, TURN, eos_token_id=[END, TURN])
    write_tokenizer(folder, ["[BOS]", "[EOS]", "[TURN]"])
    assert generated(folder, "hi")["finish"] == "end"
    write(folder, "generation_config", {"eos_token_id": END})  # before config.json, as in transformers
    assert generated(folder, "hi")["finish"] == "length"
    write(folder, "generation_config", {"eos_token_id": [TURN]})
    assert generated(folder, "hi")["finish"] == "end"
    (folder / "generation_config.json").unlink()

    folder = work / "named"
    write_model(folder, {}, TURN)
    write_tokenizer(folder, ["[BOS]", "[EOS]", "[TURN]"])
    assert generated(folder, "hi", "data.end_token=[TURN]")["finish"] == "end"
    write(folder, "tokenizer_config", {"eos_token": {"content": "[TURN]"}})
    assert generated(folder, "hi")["finish"] == "end"
    run("generate", "--hf", folder, "--prompt", "hi", "data.end_token=[NONE]", code=78)


def check_begin(work):
    """The model says x after the begin token and y after the end token."""
    folder = work / "begin"
    write_model(folder, {BEGIN: ord("x"), END: ord("y")}, ord("z"), eos_token_id=END)
    write_tokenizer(folder, ["[BOS]", "[EOS]"])
    question = work / "question.jsonl"
    question.write_text(json.dumps({"context": "", "choices": ["y", "x"], "answer": 1}) + "\n")
    choices = ("eval", "--hf", folder, "--choices", question, "--json")
    text = work / "text.txt"
    text.write_text("a" * 32)
    loss = ("eval", "--hf", folder, f'data.validation=[{{path="{text}"}}]', "train.global_batch=1", "--json")
    assert generated(folder, "hi")["ids"][:2] == [ord("h"), ord("i")]
    assert generated(folder, "")["ids"][:2] == [END, ord("y")]
    assert answer(*choices)["accuracy"] == 0
    run(*loss, "data.sequence_length=33", code=65)  # 32 letters and the end are one too few
    write_tokenizer(folder, ["[BOS]", "[EOS]"], begins=True)
    assert generated(folder, "hi")["ids"][:3] == [BEGIN, ord("h"), ord("i")]
    assert generated(folder, "")["ids"][:2] == [BEGIN, ord("x")]
    assert answer(*choices)["accuracy"] == 1
    assert answer(*loss, "data.sequence_length=33")["tokens"] == 33


def check_sampling(work):
    folder = work / "padded"  # more ids than tokens
    write_model(folder, {}, VOCABULARY - 1)
    write_tokenizer(folder, ["[BOS]"])
    for temperature in (0, 1, 50):
        assert all(i <= BEGIN for i in generated(folder, "hi", tokens=50, temperature=temperature)["ids"]), temperature
    assert all(i < 256 for i in generated(folder, "hi", "data.tokenizer=bytes")["ids"])
    folder = work / "stray"
    text = b"A\x80\xf0\x9f\x98\x81B\xff"
    write_model(folder, dict(zip(text, text[1:])), ord("."))
    write_tokenizer(folder, ["[BOS]"])
    for one in (generated(folder, "A", tokens=7), generated(folder, "A", "--top-p", 0, tokens=7, temperature=50)):
        assert one["ids"] == list(text), one
        assert one["text"] == text.decode(errors="replace"), one
    shown = run("generate", "--hf", folder, "--prompt", "A", "--tokens", 4, "--temperature", 0)
    assert shown.startswith(text[:5].decode(errors="replace") + "\n"), shown


def check_documents(work):
    folder, lines = work / "documents", work / "two.jsonl"
    folder.mkdir()
    lines.write_text('{"text": "ab"}\n{"text": "c"}\n')
    tokenizer = folder / "tokenizer.json"

    def tokens(*words):
        said = run("data", "tokenize", lines, "--tokenizer", tokenizer, "-o", work / "out", *words)
        return list(array.array("H", (work / "out.bin").read_bytes())), said

    write_tokenizer(folder, ["[START]", "[FINISH]"], begins=True)
    ids, said = tokens()
    assert ids == list(b"abc") and "data.end_token" in said and "--end-token" in said, said
    assert tokens("--end-token", "[FINISH]")[0] == [*b"ab", END, *b"c", END]
    write(folder, "tokenizer_config", {"eos_token": "[FINISH]"})
    ids, said = tokens()
    assert ids == [*b"ab", END, *b"c", END] and "data.end_token" not in said, said
    assert tokens("--no-end")[0] == list(b"abc")

    model = ("model.family=llama", "model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=2",
             f"model.vocab_size={VOCABULARY}", "data.sequence_length=4", "train.global_batch=1", "run.steps=1")
    stream = work / "stream.npy"
    stream.write_bytes(array.array("H", [1, 2, END, 3, 4, END] * 20).tobytes())
    train = ("train", *model, f'data.source=[{{format="npy", path="{stream}"}}]', "data.mask_documents=true",
             "data.tokenizer=bytes", "--progress", "never")
    said = run(*train, "-d", work / "unknown", code=78)
    assert "data.mask_documents" in said and "data.end_token" in said, said
    run(*train, "-d", work / "known", f"data.end_token={END}")


def check_export(work):
    folder = work / "ends"
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    write(folder, "special_tokens_map", {"eos_token": "[TURN]", "bos_token": "[BOS]", "pad_token": "[EOS]"})
    write(folder, "tokenizer_config", {"eos_token": "[TURN]", "added": "kept"})
    run("checkpoint", "import", folder, "-d", work / "imported")
    run("checkpoint", "export", work / "imported", "-o", work / "exported")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        assert (work / "exported" / name).read_text() == (folder / name).read_text(), name
    assert generated(work / "exported", "hi")["finish"] == "end"
    shutil.rmtree(work / "exported")


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder).resolve()
        for check in (check_ends, check_begin, check_sampling, check_documents, check_export):
            check(work)


if __name__ == "__main__":
    main()
