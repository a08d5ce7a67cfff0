"""Datasets keep their rows: some 140 configurations, each against what `golden.json` recorded.

Pinned are the rows of every split (ids, labels, positions, lengths, weights, in their order) and the numbers of the
ledger. Files, manifests and caches may change form; what is in them may not.

A change that moves code leaves every record as it is. A change that alters rows on purpose records them again, in a
commit of its own that says why: `PACKTRAIN_RECORD=1 python -m pytest tests/golden`. Without `-m "not slow"` all
configurations are run, with it a fifth of them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests import kit
from tests.kit import Config, Packed, source

RECORD = Path(__file__).with_name("golden.json")
RECORDS = bool(os.environ.get("PACKTRAIN_RECORD"))
STRATEGIES = ("bfd", "bfd_split", "wrapped", "none")
MASKS = ("completion", "assistant", "last_assistant", "all")


def _grid() -> dict[str, tuple[list[Any], Config]]:
    """Sources and keys of the configurations, by name."""
    grid: dict[str, tuple[list[Any], Config]] = {}

    def add(name: str, *sources: Config | str, **keys: Any) -> None:
        assert name not in grid, name
        grid[name] = (list(sources), keys)

    chats, texts, pairs = (source(kind) for kind in ("chats", "texts", "pairs"))
    for strategy in STRATEGIES:
        add(strategy, pack={"strategy": strategy})
    for strategy in STRATEGIES[:3]:
        add(f"{strategy}, windows", pack={"strategy": strategy, "window_tokens": 3000})
    for strategy in ("bfd", "wrapped"):
        add(f"{strategy}, holdout", pack={"strategy": strategy}, holdout={"fraction": 0.2})
        add(f"{strategy}, in order", pack={"strategy": strategy, "shuffle": False})
    for mask in MASKS[1:]:
        add(f"bfd, mask {mask}", "chats", pack={"strategy": "bfd"}, mask=mask)
    for strategy in ("bfd_split", "wrapped"):
        add(f"{strategy}, mask assistant", "chats", pack={"strategy": strategy}, mask="assistant")
    add("seed 1", seed=1, holdout={"fraction": 0.3, "by": "example"})
    for overlong, keep in (("truncate", "start"), ("truncate", "end"), ("drop", "start")):
        add(f"{overlong}, keep {keep}", truncate={"max_length": 96, "overlong": overlong, "keep": keep})
    for at in ("turns", "paragraphs", "tokens"):
        for overlap in (0, 8):
            cut = {"max_length": 96, "overlong": "split", "split": {"at": at, "overlap": overlap}}
            add(f"split at {at}, overlap {overlap}", truncate=cut)
    cut = {"max_length": 96, "overlong": "split"}
    add("split, windows", truncate=cut, pack={"window_tokens": 3000})
    add("split, duplicates, holdout", truncate=cut, duplicates="drop", holdout={"fraction": 0.2})
    add("without end", "chats", mask={"policy": "assistant", "train_end": False})
    add("untrained kept", truncate={"max_length": 96}, keep_untrained=True)
    add("untrained kept, split", truncate=cut, keep_untrained=True, mask="last_assistant")
    parts: dict[str, Config] = {
        "thoughts": {},
        "thoughts masked": {"thoughts": "mask"},
        "last thoughts": {"thoughts": "last"},
        "calls masked": {"tool_calls": "mask"},
        "thoughts and calls masked": {"thoughts": "mask", "tool_calls": "mask", "train_end": False},
    }
    for name, section in parts.items():
        add(f"{name}, assistant", "thoughts", mask={"policy": "assistant"} | section)
    add("thoughts, completion", "thoughts")
    add("thoughts, all", "thoughts", mask="all", tokenizer={"variables": {"enable_thinking": False}})

    add("duplicates dropped", duplicates="drop")
    add("duplicates dropped, holdout", duplicates="drop", holdout={"fraction": 0.2})
    add("mixture", chats | {"weight": 1.0}, texts | {"weight": 3.0})
    add("mixture, holdout", chats | {"weight": 1.0}, texts | {"weight": 0.3}, holdout={"fraction": 0.2})
    add("mixture, windows", chats | {"weight": 2.0}, texts | {"weight": 1.0}, pack={"window_tokens": 3000})
    add("mixture, repeats", chats | {"weight": 1.0, "repeat": 2}, texts | {"weight": 0.5, "repeat": 3})
    add("repeats", chats | {"repeat": 3}, texts)
    add("repeats, none", chats | {"repeat": 3}, texts, pack={"strategy": "none"})

    add("align", pack={"align": 16})
    add("align, split", pack={"align": 8}, truncate={"max_length": 96, "overlong": "split"})
    add("align, none", pack={"align": 16, "strategy": "none"})
    for layout in ("thd", "ring", "ulysses"):
        add(f"parallel {layout}", pack={"parallel": {"cp": 2, "layout": layout}})
    add("parallel thd, tp", pack={"parallel": {"cp": 2, "tp": 4, "layout": "thd"}})
    add("parallel ring, wrapped", pack={"strategy": "wrapped", "parallel": {"cp": 4, "layout": "ring"}})
    add("parallel thd, bfd_split", pack={"strategy": "bfd_split", "parallel": {"cp": 2}})
    add("at most 3 documents a row", pack={"max_docs": 3})
    add("at most 3 documents a row, split", pack={"max_docs": 3, "strategy": "bfd_split"})
    add("at most 3 documents a row, holdout", pack={"max_docs": 3}, holdout={"fraction": 0.3})
    add("tight", pack={"strategy": "tight"})
    add("tight, few documents a row", pack={"strategy": "tight", "max_docs": 4})
    add("tight, split", pack={"strategy": "tight"}, truncate=cut)

    add("source weights", chats | {"loss_weight": 0.5}, texts)
    add("source weights, split", chats | {"loss_weight": 2.0}, texts, truncate=cut)
    add("weights always", loss={"column": "always"})
    add("weights by document", loss={"normalize": "document"})
    add("message weights", source("chats", name="weighted", path="weighted.jsonl"), mask="assistant")
    add("message weights, all", source("chats", name="weighted", path="weighted.jsonl"), mask="all")
    add("row weights", source("pairs", name="rated", path="rated.jsonl", keys={"weight": "score"}))

    add("filters", chats | {"filter": {"min_tokens": 40}}, texts, filter={"max_tokens": 300})
    add("first rows", chats | {"max_rows": 30}, texts | {"max_rows": 7})
    add("where", texts | {"where": "LENGTH(text) > 120"}, pairs | {"where": "prompt LIKE '%mules%'"})
    add("a turn each", chats | {"expand": "per_turn"})
    add("a turn each, holdout", chats | {"expand": "per_turn"}, holdout={"fraction": 0.3})
    add("pairs as chats", pairs | {"style": "chat"})
    for kind in ("sharegpt", "alpaca", "apps"):
        add(kind, kind)
    add("sharegpt, assistant", "sharegpt", mask="assistant")
    add("apps, holdout", "apps", holdout={"fraction": 0.3})
    for strategy in ("bfd", "wrapped"):
        add(f"tokenized, {strategy}", "ids", pack={"strategy": strategy})
    add("formats detected", *(source(kind, format="auto") for kind in ("chats", "texts", "pairs", "apps")))
    add("everything", "chats", "texts", "pairs", "apps", "ids", holdout={"fraction": 0.1}, duplicates="drop")
    add("bad rows", source("chats", name="bad", path="bad.jsonl"), "texts")

    against = {"against": "evaluation.jsonl"}
    add("contamination reported", "chats", "texts", contamination=against)
    add("contamination dropped", "chats", "texts", contamination=against | {"action": "drop"})
    add(
        "contamination dropped, holdout", "texts", contamination=against | {"action": "drop"}, holdout={"fraction": 0.2}
    )

    alone = {"strategy": "none"}
    add("preference", "choices", pack=alone)
    add("preference, cut", "choices", truncate={"max_length": 64}, pack=alone)
    add("preference, overlong dropped", "choices", truncate={"max_length": 48, "overlong": "drop"}, pack=alone)
    add("preference, packed", "choices", holdout={"fraction": 0.2})
    add("preference, packed and cut", "choices", truncate={"max_length": 96, "keep": "end"}, pack={"strategy": "tight"})
    add("preference, packed for devices", "choices", pack={"parallel": {"cp": 2}, "max_docs": 5})
    add("preference, prompts shared", "choices", truncate={"max_length": 96}, pack={"share": "row", "align": 8})

    for name, mask in (
        *(("bos and eos", mask) for mask in ("completion", "assistant", "all")),
        *(("generation", "assistant"), ("generation", "all"), ("bos", "all"), ("eos", "completion")),
    ):
        add(f"tokenizer {name}, {mask}", chats, texts, pairs, mask=mask, tokenizer={"path": name})
    add("first half of the blocks", run={"shard": "0/2"})
    _add_rare(add)
    return grid


def _add_rare(add: Callable[..., None]) -> None:
    """Configurations of what is used less often, and of what meets seldom."""
    chats, texts, pairs = (source(kind) for kind in ("chats", "texts", "pairs"))
    weighted = source("chats", name="weighted", path="weighted.jsonl")
    cut = {"max_length": 96, "overlong": "split"}
    by_document = {"normalize": "document"}
    for strategy in ("bfd_split", "wrapped"):
        add(f"message weights by document, {strategy}", weighted, pack={"strategy": strategy}, loss=by_document)
    add("message weights, thd", weighted, mask="assistant", pack={"parallel": {"cp": 2}}, loss=by_document)
    add("weights by document, split", truncate=cut, loss=by_document, holdout={"fraction": 0.2})
    add("weights by document, repeats", weighted | {"repeat": 2}, loss=by_document)
    add("row and source weights", pairs | {"path": "rated.jsonl", "keys": {"weight": "score"}, "loss_weight": 0.5})
    add("parallel thd, align", pack={"align": 3, "parallel": {"cp": 2}}, truncate={"max_length": 192})
    add("parallel thd, few documents a row", pack={"max_docs": 3, "parallel": {"cp": 2, "tp": 2}})
    add(
        "parallel ulysses, holdout",
        pack={"parallel": {"cp": 4, "tp": 2, "layout": "ulysses"}},
        holdout={"fraction": 0.2},
    )

    musing = source("chats", name="musing", path="musing.jsonl")
    long: Config = {"truncate": {"max_length": 1024}, "tokenizer": {"path": "tools"}}
    for thoughts in ("train", "mask", "last"):
        for policy in ("assistant", "completion"):
            mask = {"policy": policy, "thoughts": thoughts}
            add(f"thoughts in two turns, {thoughts}, {policy}", musing, mask=mask, **long)
    add("last turn, calls masked", musing, mask={"policy": "last_assistant", "tool_calls": "mask"}, **long)
    add("thoughts between tags", source("chats", name="tagged", path="tagged.jsonl"), mask={"thoughts": "mask"})
    for stop in ("turn", "auto"):
        mask = {"policy": "assistant", "stop": stop}
        add(f"turns without ends, {stop}", chats, mask=mask, tokenizer={"chat_template": ENDLESS})
        add(f"turns without ends, weights, {stop}", weighted, mask=mask, tokenizer={"chat_template": ENDLESS})
    add("prompts rewritten", chats, tokenizer={"chat_template": kit.LATE_SYSTEM})
    add("system lost", chats, tokenizer=WITHOUT_SYSTEM)
    add("system allowed to be lost", chats, tokenizer=WITHOUT_SYSTEM | {"allow_lost": ["system"]}, mask="assistant")

    short = {"against": ["evaluation.jsonl"], "action": "drop", "ngram": 6, "share": 0.1}
    add("contamination of short runs", contamination=short)
    add("pairs of messages", source("pairs", name="spoken", path="spoken.jsonl"))
    add("other columns", pairs | {"path": "renamed.jsonl", "keys": {"prompt": "question", "completion": "answer"}})
    add("own reader", texts | {"format": "python:golden_reader:turns"}, holdout={"fraction": 0.2})
    add("apps, repeats dropped", source("apps", name="again", path="again.jsonl"), mask="all")
    add("split between even lines", texts | {"path": "even.jsonl"}, truncate=cut | {"split": {"at": "paragraphs"}})
    many = source("ids", name="many", path="many.jsonl", weight=3.0)
    add("mixture of many", many, texts | {"weight": 1.0, "repeat": 1}, pack={"strategy": "wrapped"})
    add("tokenized, labels and masks", source("ids", path="masked.jsonl"))
    add("special tokens in texts", texts | {"path": "special.jsonl"}, pairs | {"path": "special.jsonl"})
    twice = texts | {"filter": {"min_tokens": 40}}, texts | {"name": "unfiltered"}
    add("duplicates of rows left out", *twice, duplicates="drop")
    add(
        "preference of chats",
        source("choices", name="liked", path="liked.jsonl"),
        duplicates="drop",
        pack={"strategy": "none"},
    )
    add("tables", chats | {"path": "chats.parquet"}, pairs | {"path": "pairs.csv"}, source("ids", path="ids.arrow"))
    add("several files", texts | {"path": ["part-*.jsonl.gz", "texts.json", "notes/*.txt"]})


ASKED = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
ENDLESS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '\n' }}{% endfor %}"
    + ASKED
)
"""Ends no turn: the next header does."""
WITHOUT_SYSTEM: Config = {
    "chat_template": (
        "{{ shout }}{{ strftime_now('%Y-%m-%d') }}{% for message in messages %}{% if message.role != 'system' %}"
        "{{ '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}"
        "{% endif %}{% endfor %}"
    )
    + ASKED,
    "variables": {"shout": "ahoy "},
    "date": "2024-07-26",
}
"""Leaves the system message out, trims, and asks for a variable and the date."""
READER = """
def turns(row):
    if len(row["text"]) % 7 == 0:
        return None
    return [{"prompt": row["text"], "completion": "yes", "group": row["text"][:3]}, {"text": row["text"]}]
"""
GRID = _grid()
QUICK = {*list(GRID)[::5], "thoughts in two turns, last, assistant", "duplicates of rows left out"}


def _extra() -> Iterator[tuple[str, list[Config]]]:
    """Files beside those of the kit: name and rows."""
    weighted = kit.corpus("chats", 60, seed=7)
    for number, row in enumerate(weighted):
        for message in row["messages"]:
            message.pop("train", None)
            if message["role"] == "assistant" and number % 3:
                message["weight"] = (0.0, 0.25, 2.0)[(number + len(message["content"])) % 3]
    yield "weighted", weighted
    yield "rated", [row | {"score": (0.5, 1.0, 3.0)[n % 3]} for n, row in enumerate(kit.corpus("pairs", 60, seed=8))]
    bad: list[Any] = kit.corpus("chats", 40, seed=10)
    bad[3], bad[9] = {"messages": []}, {"messages": "no"}
    bad[14] = {"messages": [{"role": "user", "content": "nobody answers"}]}
    bad[20] = {"conversation": []}
    bad[31]["messages"][-1] = {"role": "assistant", "content": ""}
    yield "bad", bad
    said = [row["text"] for row in kit.corpus("texts")]
    asked = [row["messages"][-1]["content"] for row in kit.corpus("chats")]
    thoughts = kit.corpus("thoughts")
    yield "musing", [row | {"messages": first["messages"] + row["messages"]} for first, row in pairwise(thoughts)]
    tagged = kit.corpus("chats", seed=12)
    for message in (message for row in tagged for message in row["messages"] if message["role"] == "assistant"):
        message["content"] = f"<think>\n{message['content'][:20]}\n</think>\n\n{message['content']}"
    yield "tagged", tagged
    spoken = [{"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in kit.corpus("chats")]
    yield "spoken", spoken
    no = [{"role": "assistant", "content": "no"}]
    liked = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": no} for row in spoken]
    yield "liked", [row if number % 5 else {**liked[0], "chosen": "no"} for number, row in enumerate(liked)]
    yield "renamed", [{"question": row["prompt"], "answer": row["completion"]} for row in kit.corpus("pairs")]
    again = [row | {"difficulty": ("interview", "competition")[row["id"] % 2]} for row in kit.corpus("apps")]
    for row in again[::3]:
        row["solutions"] = json.dumps([*json.loads(row["solutions"]), "print(1)", "print(1)  ", "print(2)"])
    yield "again", again
    masked = kit.corpus("ids", 40, seed=16)
    yield "masked", [row | {"loss_mask": [n % 5 % 2 for n in range(len(row["labels"]))]} for row in masked]
    words = [f"the sun {'<|im_end|>' * (n % 3)} was {'up' * (n % 5)}{'<|im_end|>' * (n % 2)}" for n in range(40)]
    yield "special", [{"text": one, "prompt": one, "completion": one[n % 9 :]} for n, one in enumerate(words)]
    yield "even", [{"text": f"the {'sun ' * (n % 4)}was up\n" * (20 + n) + "far " * (n % 7)} for n in range(80)]
    yield "many", [{"input_ids": [n % 299, n % 23, *range(n % 5)]} for n in range(16_000)]
    yield "evaluation", [{"question": text, "answer": "1"} for text in (*said[5:60:7], *asked[2:50:9])]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all configurations find their files and tokenizers."""
    folder = tmp_path_factory.mktemp("golden")
    for name, rows in _extra():
        kit.write(folder / f"{name}.jsonl", rows)
    for name, kind in {"chats.parquet": "chats", "pairs.csv": "pairs", "ids.arrow": "ids"}.items():
        kit.write(folder / name, kit.corpus(kind))
    kit.write(folder / "part-1.jsonl.gz", kit.corpus("texts")[:30])
    kit.write(folder / "part-2.jsonl.gz", kit.corpus("texts")[30:])
    kit.write(folder / "texts.json", kit.corpus("texts", 20, seed=13))
    (folder / "notes").mkdir()
    for number, row in enumerate(kit.corpus("texts", 3, seed=14)):
        (folder / "notes" / f"{number}.txt").write_text(row["text"] + "\n\nand a line\n")
    (folder / "golden_reader.py").write_text(READER)
    kit.tokenizer(folder / "bos", bos=True)
    kit.tokenizer(folder / "eos", eos=True)
    kit.tokenizer(folder / "bos and eos", bos=True, eos=True)
    kit.tokenizer(folder / "generation", template=kit.GENERATION)
    kit.tokenizer(folder / "tools", template=kit.TOOLS, special=("<think>", "</think>"))
    return folder


def _packed(name: str, inputs: Path) -> Packed:
    sources, keys = GRID[name]
    place = keys.get("tokenizer", {}).get("path")
    thoughtful = any(one == "thoughts" or (isinstance(one, dict) and one["name"] == "thoughts") for one in sources)
    tokenizer = {"path": str(inputs / (place or "tools"))} if place or thoughtful else {}
    out = inputs / f"out-{list(GRID).index(name)}"
    config = kit.configure(inputs, *sources, **keys)
    return kit.packed(kit.merged(config, {"out": str(out), "tokenizer": tokenizer}), base=inputs)


def _numbers(value: Any) -> Any:
    """A ledger without what is zero or empty, so that a new counter changes no record in which it counts nothing."""
    if isinstance(value, dict):
        plain = {key: _numbers(one) for key, one in value.items()}
        return {key: one for key, one in sorted(plain.items()) if one}
    return value


def _record(packed: Packed) -> Config:
    """What is pinned of a dataset."""
    ledger = _numbers(packed.ledger)
    sources = ledger.values()
    return {
        "rows": packed.digest(),
        "ledger": hashlib.sha256(json.dumps(ledger, sort_keys=True).encode()).hexdigest()[:16],
        "counts": [
            sum(len(packed.table(split)) for split in packed.splits),
            *(sum(one.get(key, 0) for one in sources) for key in ("examples_made", "tokens_encoded", "labels_trained")),
        ],
    }


@pytest.fixture(scope="module")
def recorded() -> Config:
    """The records by name."""
    known: Config = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return known


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in GRID]
)
def test_rows_and_ledger(name: str, inputs: Path, recorded: Config) -> None:
    found = _record(_packed(name, inputs))
    if RECORDS:
        recorded[name] = found
        kept = {key: recorded[key] for key in GRID if key in recorded}
        body = ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in kept.items())
        RECORD.write_text(f"{{\n{body}\n}}\n")
    assert found == recorded[name]


def test_the_grid_tells_configurations_apart(recorded: Config) -> None:
    assert set(recorded) == set(GRID)
    assert len(GRID) >= 120
    assert len({one["rows"] for one in recorded.values()}) >= 95


@pytest.mark.parametrize("name", ["bfd", "bfd, holdout"])
def test_datasets_loads_the_same_rows(name: str, inputs: Path) -> None:
    from datasets import load_from_disk

    made = _packed(name, inputs)
    loaded = load_from_disk(str(made.folder))
    for split in made.splits:
        assert (loaded[split] if len(made.splits) > 1 else loaded).to_list() == made.rows(split)
