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

from tests.support.unnamed import unnamed

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

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


@dataclass(frozen=True)
class Explained:
    """One of TRL's rows, brought to packtrain's tokens, and the names of all that was brought there."""

    ids: list[int]
    labels: list[int]
    """TRL's own."""
    asked: list[int]
    """What follows the prompt, by the tokens' bytes; the first token included."""
    straddles: bool
    names: tuple[str, ...]


@dataclass
class Bench:
    """One tokenizer, its sources, and what TRL makes of them."""

    name: str
    folder: Path
    tokenizer: Any
    sources: list[Source]
    work: Path
    theirs: dict[str, list[Explained]] = field(default_factory=dict)

    def run(self, out: str, **config: Any) -> tuple[Path, Manifest]:
        """packtrain over all sources; encoded once, planned as often as asked."""
        settings = {
            "out": str(self.work / out),
            "cache": str(self.work / "cache"),
            "tokenizer": {"path": str(self.folder)},
            "sources": [source.config() for source in self.sources],
            "truncate": {"max_length": 1 << 20},
            "pack": {"strategy": "none", "shuffle": False},
            "run": {"workers": 1, "report": False},
        }
        return self.work / out, packtrain.run({**settings, **config})

    @property
    def explained(self) -> list[tuple[str, Explained]]:
        """(example id, row) of all rows with a text, in packtrain's order."""
        return [
            (key, row)
            for source in self.sources
            for key, row in zip(source.ids, self.theirs[source.name], strict=True)
            if NOTHING not in row.names
        ]


def prepare(tokenizer: Any, rows: list[Row], **settings: Any) -> list[Row]:
    from trl import SFTConfig, SFTTrainer

    settings = {"max_length": None, **settings}
    args = SFTConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none", **settings)
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=None, completion_only_loss="prompt" in rows[0])
    with unnamed():
        made = SFTTrainer._prepare_dataset(trainer, Dataset.from_list(rows), tokenizer, args, False, None, "train")
    return list(made.select_columns([name for name in ("input_ids", "labels", "key") if name in made.column_names]))


# --- rows ---

FRAGMENTS = (
    *("Hello", "world", " the", " answer is", "42", "1234567", "don't", "x = f(a, b)\n    return x", "naïve", "ſ", "İ"),
    *("", " ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u2028", "\x00", "\x1f", "\ufeff", "\u200d"),
    *("é", "e\u0301", "\u0301", "\u212b", "ﬁ", "각", "\u1100\u1161\u11a8", "क्षि", "中文", "日本語", "עברית"),
    *("🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "\U0001f1e9", "👍🏽", "𝒳"),
    *("<|im_start|>", "<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<|EOT|>", "<s>", "</s>", "<pad>"),
    *(
        "<｜begin▁of▁sentence｜>",
        "<|im_",
        "end|>",
        "<think>",
        "</think>",
        "[INST]",
        "### Response:",
        "{{",
        "{% if %}",
        "\\n",
        '"',
        "Ġ",
        "▁",
    ),
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
        # packtrain rejects conversations that end with an empty answer, as nothing would be learned from them.
        yield {"prompt": prompt, "completion": [{"role": "assistant", "content": some_text(chance) or "Yes."}]}


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


def odd_rows(tokenizer: Any) -> list[Row]:
    """One row or two for every name that generated rows may not have."""
    begin, end = tokenizer.bos_token or "", tokenizer.eos_token
    return [
        {"prompt": "", "completion": ""},
        {"prompt": "A question", "completion": ""},
        {"prompt": "", "completion": end},
        {"prompt": "", "completion": " and so on"},
        {"prompt": begin + "A question", "completion": " and so on"},
        {"prompt": "A question" + end[:3], "completion": end[3:]},
        {"prompt": "A question", "completion": end + "and so on"},
        {"prompt": "A question:   ", "completion": "and so on"},
        {"prompt": "A question:\n", "completion": "\nand so on"},
    ]


def lines_of(path: Path, count: int) -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


def real(root: Path, folder: Path) -> list[Source]:
    """Real rows of every kind."""
    out = []
    for name, count in (("gsm8k_train", 100), ("oasst_en100_paths", 100)):
        rows = [
            {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]}
            for row in lines_of(root / f"chat/{name}.jsonl", count)
            if row["messages"][-1]["role"] == "assistant"
        ]
        out.append(write_source(folder, name, "prompt_completion", rows))
    pairs = lines_of(root / "preference/dpo_pairs.jsonl", 100)
    chosen = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in pairs]
    out.append(write_source(folder, "chosen", "prompt_completion", chosen))
    peps = [{"text": row["text"][:20_000]} for row in lines_of(root / "longdoc/peps.jsonl", 40)]
    out.append(write_source(folder, "peps", "text", peps))
    problems = write_source(folder, "apps", "apps", lines_of(root / "apps/train.jsonl", 8))
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


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in REAL]


@pytest.fixture(scope="module", params=[*TINY, *SLOW])
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
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sources.append(write_source(work, "odd", "prompt_completion", odd_rows(tokenizer)))
    made = Bench(name, folder, tokenizer, sources, work)
    for source in sources:
        theirs = prepare(tokenizer, source.rows)
        made.theirs[source.name] = [explain(made, row, their) for row, their in zip(source.rows, theirs, strict=True)]
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


def begin_of_completion(tokenizer: Any, row: Row, ids: list[int], skipped: int) -> tuple[int, bool]:
    """The first token whose bytes do not lie within the prompt, and whether some of them do.

    `skipped` tokens at the front stand for no text.
    """
    if "text" in row:
        return skipped, False
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
            return index, done < len(data)
        done += len(piece)
    return len(ids), False


def explain(bench: Bench, row: Row, theirs: Row) -> Explained:
    """Everything in which TRL's row is not packtrain's, by name. What has no name fails here."""
    tokenizer, names = bench.tokenizer, list[str]()
    end = tokenizer.eos_token
    ids, labels = list(theirs["input_ids"]), list(theirs["labels"])
    plain = "text" in row or isinstance(row["prompt"], str)
    text = row["text"] if "text" in row else row["prompt"] + row["completion"] if plain else ""
    last = str(row["text"] if "text" in row else row["completion"]) if plain else ""
    if plain and not last:
        return Explained([], [], [], False, (NOTHING,))
    skipped = 0
    if plain and bench.name in ("tiny-bos", "deepseek-coder-instruct"):
        if text.startswith(tokenizer.bos_token):
            assert ids[:2] == [tokenizer.bos_token_id] * 2
            ids, labels = ids[1:], labels[1:]
            names.append(BOS_TWICE)
        else:
            skipped = 1
    if plain and bench.name == "tiny-eos":
        assert ids[-2:] == [tokenizer.eos_token_id] * 2
        ids, labels = ids[:-1], labels[:-1]
        names.append(EOS_TWICE)
    if plain and text.endswith(end) and not last.endswith(end):
        assert ids[-2:] == [tokenizer.eos_token_id] * 2
        ids, labels = ids[:-1], labels[:-1]
        names.append(EOS_ACROSS)

    begin, straddles = begin_of_completion(tokenizer, row, ids, skipped)
    asked = [IGNORE_INDEX] * begin + ids[begin:]
    if begin + (begin == 0) >= len(ids):
        names.append(UNTRAINED)

    theirs_begin = next((i for i, label in enumerate(labels) if label != IGNORE_INDEX), len(ids))
    assert labels == [IGNORE_INDEX] * theirs_begin + ids[theirs_begin:]
    if theirs_begin == 0:
        names.append(HEAD)
    if max(theirs_begin, 1) < max(begin, 1):
        names.append(PROMPT_END)
        assert "prompt" in row
    elif theirs_begin > max(begin, 1):
        names.append(PROMPT_EOS)
        assert EOS_TWICE in names
        assert theirs_begin == begin + 1
        assert ids[begin] == tokenizer.eos_token_id
    return Explained(ids, labels, asked, straddles, tuple(names))


def by_id(out: Path, rows: list[Row]) -> dict[str, Row]:
    """Rows of one document each, by their example's id."""
    documents = pq.read_table(out / "documents.parquet").to_pylist()
    names = {document["doc_id"]: document["id"] for document in documents}
    assert all(len(row["doc_ids"]) == 1 for row in rows)
    return {names[row["doc_ids"][0]]: row for row in rows}


def without_head(labels: list[int]) -> list[int]:
    return [IGNORE_INDEX, *labels[1:]]


ODD = {
    "tiny": {NOTHING: 2, HEAD: 2, UNTRAINED: 1, EOS_ACROSS: 1, PROMPT_END: 1},
    "tiny-bos": {NOTHING: 2, BOS_TWICE: 1, EOS_ACROSS: 1, PROMPT_END: 1},
    "tiny-eos": {NOTHING: 2, EOS_TWICE: 7, HEAD: 1, UNTRAINED: 1, PROMPT_EOS: 1, EOS_ACROSS: 1, PROMPT_END: 1},
    "qwen3": {NOTHING: 2, HEAD: 2, UNTRAINED: 1, EOS_ACROSS: 1, PROMPT_END: 1},
    "deepseek-coder-instruct": {NOTHING: 2, BOS_TWICE: 1, EOS_ACROSS: 1, PROMPT_END: 1},
    "olmo-gpt-neox": {NOTHING: 2, HEAD: 2, UNTRAINED: 1, EOS_ACROSS: 1},
}
"""How often each name occurs in the nine odd rows."""

GLUED = {"qwen3": 28, "deepseek-coder-instruct": 28, "olmo-gpt-neox": 29}
"""In how many of the 39 texts that are cut anywhere a token stands on both sides of the cut."""


def test_every_label_of_every_row(bench: Bench, read_rows: ReadRows) -> None:
    out, manifest = bench.run("rows")
    ours = by_id(out, read_rows(out))
    compared = 0
    for key, row in bench.explained:
        if UNTRAINED in row.names:
            assert key not in ours
            continue
        mine = ours.pop(key)
        assert mine["input_ids"] == row.ids
        assert mine["labels"] == without_head(row.asked)
        compared += 1
    assert ours == {}
    assert compared > (600 if bench.name in TINY else 1000)

    for source in bench.sources:
        entry = manifest.ledger.sources[source.name]
        rows = bench.theirs[source.name]
        named = Counter(name for row in rows for name in row.names)
        assert sum(entry.rows_rejected.values()) == named[NOTHING]
        assert entry.examples_dropped == ({"untrained": named[UNTRAINED]} if named[UNTRAINED] else {})
        # Those at earlier turns of a conversation are counted, too.
        assert entry.straddles >= sum(row.straddles for row in rows)
        packed = [row for row in rows if not {UNTRAINED, NOTHING} & {*row.names}]
        assert entry.labels_head == sum(row.asked[0] != IGNORE_INDEX for row in packed)
        assert entry.labels_trained == sum(one != IGNORE_INDEX for row in packed for one in row.asked[1:])
        if source.name in ("gsm8k_train", "oasst_en100_paths", "chosen", "apps", "chat"):
            assert not named  # not one label of a conversation differs, with any template
            assert (entry.turns_trained, entry.turns_without_end) == (len(rows), 0)
            assert len(rows) >= 90
        elif source.name == "odd":
            assert dict(named) == ODD[bench.name]
        elif source.name == "glued":
            assert sum(row.straddles for row in rows) == GLUED[bench.name]
        elif source.format == "text":
            assert named[HEAD] == len(packed)
            assert {*named} <= {HEAD, NOTHING, BOS_TWICE, EOS_TWICE}
        else:
            assert {NOTHING, PROMPT_END} <= {*named}
            assert {*named} <= {HEAD, NOTHING, PROMPT_END, PROMPT_EOS, BOS_TWICE, EOS_TWICE}


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_packed_rows_in_order(bench: Bench, strategy: str, read_rows: ReadRows) -> None:
    """TRL's packing over the whole table gives packtrain's rows, in the same order, where nothing is shuffled."""
    from trl import pack_dataset

    length = 96 if bench.name in TINY else 2048
    table = Dataset.from_list([{"input_ids": row.ids, "labels": row.asked} for _, row in bench.explained])
    theirs = pack_dataset(table, length, strategy, {"batch_size": len(table)})
    out, manifest = bench.run(
        strategy,
        keep_untrained=True,
        truncate={"max_length": length},
        pack={"strategy": strategy, "shuffle": False},
    )
    ours = read_rows(out)
    assert len(ours) == len(theirs) > 30
    heads = 0
    for mine, their in zip(ours, theirs, strict=True):
        assert mine["input_ids"] == their["input_ids"]
        if strategy != "wrapped":  # TRL forgets where documents begin when it wraps
            assert mine["seq_lengths"] == their["seq_lengths"]
        expected = list(their["labels"])
        for begin in np.cumsum([0, *mine["seq_lengths"][:-1]]).tolist():
            heads += expected[begin] != IGNORE_INDEX
            expected[begin] = IGNORE_INDEX
        assert mine["labels"] == expected
    total = manifest.ledger.total()
    assert heads == total.labels_head
    lost = sum(len(row.ids) for _, row in bench.explained) - sum(len(row["input_ids"]) for row in theirs)
    assert total.tokens_truncated.get("max_length", 0) == lost
    assert (lost > 0) == (strategy == "bfd")


@pytest.mark.parametrize("keep", ["start", "end"])
def test_truncated_rows(bench: Bench, keep: str, read_rows: ReadRows) -> None:
    """The same tokens stay. Where truncation takes every label, both drop the example; packtrain counts it.

    TRL keeps one whose only label is the first of what stays, which its collator masks.
    """
    length = 24 if bench.name in TINY else 300
    kept = [(key, row) for key, row in bench.explained if UNTRAINED not in row.names]
    rows = [{"input_ids": row.ids, "labels": row.asked, "key": key} for key, row in kept]
    theirs = {
        row["key"]: row for row in prepare(bench.tokenizer, rows, max_length=length, truncation_mode=f"keep_{keep}")
    }
    out, manifest = bench.run(f"keep-{keep}", truncate={"max_length": length, "keep": keep})
    ours = by_id(out, read_rows(out))
    part = slice(None, length) if keep == "start" else slice(-length, None)
    only_head = dropped = 0
    packed = []
    for key, row in kept:
        if key in ours:
            packed.append((key, row))
            assert ours[key]["input_ids"] == theirs[key]["input_ids"] == row.ids[part]
            assert ours[key]["labels"] == without_head(row.asked[part])
        elif key in theirs:
            only_head += 1
            assert not any(label != IGNORE_INDEX for label in theirs[key]["labels"][1:])
        else:
            dropped += 1
            assert not any(label != IGNORE_INDEX for label in row.asked[part])
    kept = packed
    total = manifest.ledger.total()
    assert total.examples_without_labels == 0
    assert total.examples_dropped.get("cut_untrained", 0) == dropped + only_head
    assert total.examples_truncated == sum(len(row.ids) > length for _, row in kept) > 20
    assert total.tokens_truncated == {"max_length": sum(max(len(row.ids) - length, 0) for _, row in kept)}
    assert total.asked_truncated == sum(
        sum(one != IGNORE_INDEX for one in row.asked)
        - sum(one != IGNORE_INDEX for one in (row.asked[:length] if keep == "start" else row.asked[-length:]))
        for _, row in kept
    )
    assert dropped > 0 if keep == "start" else dropped == 0


def test_conversations_trained_whole(bench: Bench, read_rows: ReadRows) -> None:
    """`messages` with mask `all` is TRL's language modelling of conversations."""
    chats = [source for source in bench.sources if source.name in ("chat", "oasst_en100_paths")]
    rows = [{"messages": row["prompt"] + row["completion"]} for source in chats for row in source.rows[:80]]
    source = write_source(bench.work, "whole", "messages", rows)
    theirs = prepare(bench.tokenizer, rows)
    out, manifest = bench.run("whole", sources=[source.config()], mask="all")
    ours = by_id(out, read_rows(out))
    assert len(ours) == len(theirs) >= 80
    for key, their in zip(source.ids, theirs, strict=True):
        assert ours[key]["input_ids"] == their["input_ids"] == their["labels"]
        assert ours[key]["labels"] == without_head(their["labels"])
    assert manifest.ledger.total().labels_head == len(rows)
    assert manifest.ledger.total().labels_not_asked == 0


def test_trl_masks_the_same_heads_later(bench: Bench, read_rows: ReadRows) -> None:
    """TRL's collator makes the same batch of its own rows and of packtrain's, and leaves packtrain's as they are."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    rows = [row for _, row in bench.explained if not {UNTRAINED, PROMPT_END, PROMPT_EOS} & {*row.names}]
    out, _ = bench.run("rows")
    ours = by_id(out, read_rows(out))
    keys = [key for key, row in bench.explained if not {UNTRAINED, PROMPT_END, PROMPT_EOS} & {*row.names}]
    theirs = collate([{"input_ids": row.ids, "labels": row.labels} for row in rows])
    mine = collate([ours[key] for key in keys])
    assert len(rows) > 400
    assert {*mine} == {*theirs}
    for name, value in theirs.items():
        assert np.array_equal(mine[name], value), name
    assert mine["labels"][0].tolist() == [label for key in keys for label in ours[key]["labels"]]
    assert mine["position_ids"][0].tolist() == [place for key in keys for place in ours[key]["position_ids"]]
    assert sum(HEAD in row.names for row in rows) > 200


def test_the_trainer_prepares_as_driven_here(make_tokenizer: Callable[..., Path], tmp_path: Path) -> None:
    """`prepare` above calls one method of a trainer that was never built; a real one gives the same."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(make_tokenizer("tiny"))
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    for source in generated(tmp_path, count=40):
        args = SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", max_length=None)
        trainer = SFTTrainer(
            LlamaForCausalLM(config), args, train_dataset=Dataset.from_list(source.rows), processing_class=tokenizer
        )
        made = list(trainer.train_dataset.select_columns(["input_ids", "labels"]))
        assert made == prepare(tokenizer, source.rows)
        assert len(made) == 40
