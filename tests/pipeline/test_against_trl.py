"""packtrain's rows are those of TRL's own preparation. Every difference there is has a name, and is counted.

TRL tokenizes the prompt alone and the whole, and trains what follows their common prefix. packtrain tokenizes once
and trains the tokens whose bytes reach beyond the prompt's. The test knows the second rule from the tokens' own
bytes, so it explains every single label of every row, and each name below says where the first rule differs.
"""

import json
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import packtrain
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from packtrain.schemas.manifest import Manifest
from packtrain.schemas.rows import IGNORE_INDEX
from packtrain.stages.prep import AppsOptions, make_format, public_row
from transformers import AutoTokenizer

HEAD = "the first token: TRL labels it and masks it in its collator, packtrain never labels it"
PROMPT_END = "the prompt alone ends in other tokens: TRL trains the end of the prompt as well"
PROMPT_EOS = "TRL's tokenizer ends the prompt, too: a completion that begins with that token goes untrained"
BOS_TWICE = "the text brings its own beginning of sequence, and TRL's tokenizer adds another"
EOS_TWICE = "TRL ends the text, and its tokenizer ends it again"
EOS_ACROSS = "prompt and completion make an end of sequence together: TRL adds another"
NOTHING = "no text at all: packtrain rejects the row, TRL makes it an end of sequence"
UNTRAINED = "no label counts: packtrain leaves the example out, TRL keeps it"

TINY = ("tiny", "tiny-bos", "tiny-eos")
REAL = ("qwen3", "deepseek-coder-instruct", "olmo-gpt-neox")

Row = dict[str, Any]
ReadRows = Callable[..., list[Row]]


@dataclass(frozen=True)
class Source:
    """The same rows for both: a file for packtrain, plain rows for TRL."""

    name: str
    format: str
    file: Path
    rows: list[Row]
    ids: list[str]
    """What packtrain calls the example of each of TRL's rows."""

    def config(self) -> Row:
        return {"name": self.name, "format": self.format, "path": str(self.file)}


@dataclass
class Bench:
    """One tokenizer, its sources, and what TRL makes of them."""

    name: str
    folder: Path
    tokenizer: Any
    sources: list[Source]
    work: Path
    theirs: dict[str, list[Row]] = field(default_factory=dict)

    def run(self, out: str, **config: Any) -> tuple[Path, Manifest]:
        """packtrain over all sources; encoded once, planned as often as asked."""
        settings = {
            "out": str(self.work / out),
            "cache": str(self.work / "cache"),
            "tokenizer": {"path": str(self.folder)},
            "sources": [source.config() for source in self.sources],
            "truncate": {"max_length": 1 << 20},
            "pack": {"strategy": "none", "shuffle": False},
            "run": {"workers": 1},
        }
        return self.work / out, packtrain.run({**settings, **config})

    def prepare(self, source: Source, **settings: Any) -> list[Row]:
        """TRL's own preparation, up to packing."""
        return prepare(self.tokenizer, source.rows, **settings)


def prepare(tokenizer: Any, rows: list[Row], **settings: Any) -> list[Row]:
    from trl import SFTConfig, SFTTrainer

    settings = {"max_length": None, **settings}
    args = SFTConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none", **settings)
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=None, completion_only_loss="prompt" in rows[0])
    made = SFTTrainer._prepare_dataset(trainer, Dataset.from_list(rows), tokenizer, args, False, None, "train")
    return list(made.select_columns(["input_ids", "labels"]))


# --- rows ---

FRAGMENTS = (
    *("Hello", "world", " the", " answer is", "42", "1234567", "don't", "x = f(a, b)\n    return x", "naïve", "ſ", "İ"),
    *("", " ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u2028", "\x00", "\x1f", "\ufeff", "\u200d"),
    *("é", "e\u0301", "\u0301", "\u212b", "ﬁ", "각", "\u1100\u1161\u11a8", "क्षि", "中文", "日本語", "עברית"),
    *("🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "\U0001f1e9", "👍🏽", "𝒳"),
    *("<|im_start|>", "<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<|EOT|>", "</s>", "<pad>"),
    *("<|im_", "end|>", "<think>", "</think>", "[INST]", "### Response:", "{{", "{% if %}", "\\n", '"', "Ġ", "▁"),
)


def some_text(chance: random.Random, least: int = 0) -> str:
    return "".join(chance.choices(FRAGMENTS, k=chance.randint(least, 7)))


def plain_rows(chance: random.Random, count: int) -> Iterator[Row]:
    for _ in range(count):
        yield {"prompt": some_text(chance), "completion": some_text(chance)}


def chat_rows(chance: random.Random, count: int) -> Iterator[Row]:
    for _ in range(count):
        system = [{"role": "system", "content": some_text(chance)}] if chance.random() < 0.3 else []
        turns = [
            {"role": role, "content": some_text(chance)}
            for _ in range(chance.randint(0, 2))
            for role in ("user", "assistant")
        ]
        prompt = [*system, *turns, {"role": "user", "content": some_text(chance)}]
        yield {"prompt": prompt, "completion": [{"role": "assistant", "content": some_text(chance)}]}


def text_rows(chance: random.Random, count: int) -> Iterator[Row]:
    for _ in range(count):
        yield {"text": some_text(chance)}


def write_source(folder: Path, name: str, form: str, rows: list[Row]) -> Source:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8", newline="")
    return Source(name, form, file, rows, [f"{name}/{name}:{line}" for line in range(1, len(rows) + 1)])


def generated(folder: Path, seed: int = 20_26, count: int = 250) -> list[Source]:
    chance = random.Random(seed)
    return [
        write_source(folder, "plain", "prompt_completion", list(plain_rows(chance, count))),
        write_source(folder, "chat", "prompt_completion", list(chat_rows(chance, count))),
        write_source(folder, "text", "text", list(text_rows(chance, count))),
    ]


def lines_of(path: Path, count: int) -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


def real(root: Path, folder: Path) -> list[Source]:
    """A few hundred real rows of every kind."""
    out = []
    for name, count in (("gsm8k_train", 300), ("oasst_en100_paths", 200)):
        rows = [
            {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]}
            for row in lines_of(root / f"chat/{name}.jsonl", count)
            if row["messages"][-1]["role"] == "assistant"
        ]
        out.append(write_source(folder, name, "prompt_completion", rows))
    pairs = lines_of(root / "preference/dpo_pairs.jsonl", 200)
    chosen = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in pairs]
    out.append(write_source(folder, "chosen", "prompt_completion", chosen))
    peps = [{"text": row["text"][:20_000]} for row in lines_of(root / "longdoc/peps.jsonl", 40)]
    out.append(write_source(folder, "peps", "text", peps))
    problems = write_source(folder, "apps", "apps", lines_of(root / "apps/train.jsonl", 15))
    apps = make_format("apps", AppsOptions())
    examples = apps.prepare(enumerate(problems.file.read_bytes().splitlines())).examples
    rows = [public_row(example, apps.form) for example in examples]
    ids = [f"apps/apps:{example.line + 1}/{example.sub}" for example in examples]
    out.append(Source("apps", "apps", problems.file, rows, ids))
    # An answer that is glued to its prompt: tokens merge across the boundary more often than not.
    glued = [{"prompt": row["text"][:cut], "completion": row["text"][cut : cut + 900]} for cut, row in enumerate(peps)]
    out.append(write_source(folder, "glued", "prompt_completion", glued[1:]))
    return out


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture(scope="module", params=[*TINY, *REAL])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Every tokenizer over generated rows; the real ones over real rows as well."""
    name = str(request.param)
    work = tmp_path_factory.mktemp(f"trl-{name}")
    sources = generated(work)
    if name in REAL:
        root = request.getfixturevalue("realdata")
        folder = root / "tokenizers" / name
        sources += real(root, work)
    else:
        make = request.getfixturevalue("make_tokenizer")
        folder = make(name, bos=name == "tiny-bos", eos=name == "tiny-eos")
    made = Bench(name, folder, AutoTokenizer.from_pretrained(folder), sources, work)
    for source in sources:
        made.theirs[source.name] = made.prepare(source)
    return made


# --- the rule, from the bytes of tokens ---


def byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level vocabularies spell bytes: printable Latin-1 itself, the rest from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(other)}


ALPHABET = byte_alphabet()


def token_bytes(tokenizer: Any, ids: list[int]) -> list[bytes]:
    added = tokenizer.added_tokens_decoder
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return [
        added[one].content.encode() if one in added else bytes(ALPHABET[char] for char in token)
        for one, token in zip(ids, tokens, strict=True)
    ]


def begin_of_completion(tokenizer: Any, row: Row, ids: list[int], skipped: int) -> int:
    """The first token whose bytes do not lie within the prompt; `skipped` tokens stand for no text."""
    if "text" in row:
        return skipped
    if isinstance(row["prompt"], str):
        prompt = row["prompt"]
    else:
        alone = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(row["prompt"] + row["completion"], tokenize=False)
        same = next((i for i, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b), None)
        prompt = whole[: min(len(alone), len(whole))] if same is None else whole[:same]
    normaliser = tokenizer.backend_tokenizer.normalizer
    form = unicodedata.normalize("NFC", prompt) if "NFC" in repr(normaliser) else prompt
    data, done = form.encode(), 0
    for index, piece in enumerate(token_bytes(tokenizer, ids[skipped:]), skipped):
        if data[done : done + len(piece)] != piece:
            return index
        done += len(piece)
    return len(ids)


def text_of(row: Row) -> str:
    """The plain text of a row, before anything ends it; "" for a conversation."""
    if "text" in row:
        return str(row["text"])
    return row["prompt"] + row["completion"] if isinstance(row["prompt"], str) else ""


def explain(bench: Bench, row: Row, theirs: Row, ours: Row | None) -> Iterator[str]:
    """The names of all differences of one row. Anything without a name fails here."""
    tokenizer = bench.tokenizer
    ids, labels = list(theirs["input_ids"]), list(theirs["labels"])
    plain = "text" in row or isinstance(row["prompt"], str)
    text = text_of(row)
    if plain and not (row["text"] if "text" in row else row["completion"]):
        assert ours is None
        yield NOTHING
        return
    adds_bos, adds_eos = bench.name in ("tiny-bos", "deepseek-coder-instruct"), bench.name == "tiny-eos"
    skipped = 0
    if plain and adds_bos:
        if text.startswith(tokenizer.bos_token):
            assert ids[:2] == [tokenizer.bos_token_id] * 2
            ids, labels = ids[1:], labels[1:]
            yield BOS_TWICE
        else:
            skipped = 1
    if plain and adds_eos:
        assert ids[-2:] == [tokenizer.eos_token_id] * 2
        ids, labels = ids[:-1], labels[:-1]
        yield EOS_TWICE
    if "prompt" in row and plain and text.endswith(tokenizer.eos_token) and not row["completion"].endswith(
        tokenizer.eos_token
    ):
        assert ids[-2:] == [tokenizer.eos_token_id] * 2
        ids, labels = ids[:-1], labels[:-1]
        yield EOS_ACROSS

    begin = begin_of_completion(tokenizer, row, ids, skipped)
    asked = [IGNORE_INDEX] * begin + ids[begin:]
    expected = [IGNORE_INDEX, *asked[1:]]
    if all(label == IGNORE_INDEX for label in expected):
        assert ours is None
        yield UNTRAINED
        return
    assert ours is not None
    assert ours["input_ids"] == ids
    assert ours["labels"] == expected

    # TRL's labels are the same but for what has a name.
    theirs_begin = next((i for i, label in enumerate(labels) if label != IGNORE_INDEX), len(ids))
    assert labels == [IGNORE_INDEX] * theirs_begin + ids[theirs_begin:]
    if theirs_begin == 0:
        yield HEAD
    if max(theirs_begin, 1) < max(begin, 1):
        if "text" not in row:
            yield PROMPT_END
    elif theirs_begin > begin and theirs_begin > 1:
        assert adds_eos
        assert theirs_begin == begin + 1
        assert ids[begin] == tokenizer.eos_token_id
        yield PROMPT_EOS


def by_id(out: Path, rows: list[Row]) -> dict[str, Row]:
    """Rows of one document each, by their example's id."""
    documents = pq.read_table(out / "documents.parquet").to_pylist()
    names = {document["doc_id"]: document["id"] for document in documents}
    assert all(len(row["doc_ids"]) == 1 for row in rows)
    return {names[row["doc_ids"][0]]: row for row in rows}


def test_every_label_of_every_row(bench: Bench, read_rows: ReadRows) -> None:
    out, manifest = bench.run("rows")
    ours = by_id(out, read_rows(out))
    compared, counts = 0, dict[str, Counter[str]]()
    for source in bench.sources:
        counts[source.name] = Counter()
        for key, row, theirs in zip(source.ids, source.rows, bench.theirs[source.name], strict=True):
            mine = ours.pop(key, None)
            compared += mine is not None
            counts[source.name].update(explain(bench, row, theirs, mine))
    assert ours == {}
    assert compared == sum(entry.examples_packed["train"] for entry in manifest.ledger.sources.values()) > 400
    for source in bench.sources:
        entry = manifest.ledger.sources[source.name]
        named = counts[source.name]
        assert sum(entry.rows_rejected.values()) == named[NOTHING]
        assert entry.examples_dropped.get("untrained", 0) == named[UNTRAINED]
    print(json.dumps({name: dict(c) for name,c in counts.items()},indent=1,ensure_ascii=False))
