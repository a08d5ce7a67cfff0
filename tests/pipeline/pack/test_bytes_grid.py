"""Datasets keep their bytes: 70 configurations, each against the digest that `bytes_grid.json` recorded.

A change that moves code must leave every digest as it is. A change that alters what is packed on purpose records them
again, in a commit of its own: `PACKTRAIN_REWRITE_GRID=1 python -m pytest tests/pipeline/pack/test_bytes_grid.py`.

A digest covers the rows of every split in order, `documents.parquet`, the ledger and the certificates, so it is the
same for other versions of pyarrow or tokenizers. Manifest hashes cover versions, so they are only compared where the
versions are those of the record.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import packtrain
import pyarrow.parquet as pq
import pytest
from packtrain.schemas.fingerprint import fingerprint
from packtrain.schemas.manifest import Manifest

RECORD = Path(__file__).with_name("bytes_grid.json")
REWRITE = bool(os.environ.get("PACKTRAIN_REWRITE_GRID"))
WORDS = [
    "the",
    "mules",
    "left",
    "before",
    "sun",
    "was",
    "up",
    "def",
    "return",
    "for",
    "in",
    "range",
    "1",
    "22",
    "333",
    "über",
    "naïve",
    "中文",
    "🙂",
]
Config = dict[str, Any]

CHATS: Config = {"name": "chats", "format": "messages", "path": "chats.jsonl"}
TEXTS: Config = {"name": "texts", "format": "text", "path": "texts.jsonl"}
PAIRS: Config = {"name": "pairs", "format": "prompt_completion", "path": "pairs.jsonl"}
APPS: Config = {"name": "apps", "format": "apps", "path": "apps.jsonl"}
IDS: Config = {"name": "ids", "format": "tokenized", "path": "ids.jsonl"}
CHOICES: Config = {"name": "choices", "format": "preference", "path": "choices.jsonl"}
LISTS = [CHATS, TEXTS, PAIRS]


def _talk(chance: random.Random, most: int = 60) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randrange(3, most)))


def _rows(name: str, chance: random.Random) -> Iterator[Config]:
    for number in range(90):
        long = 400 if number % 17 == 0 else 60
        if name == "texts":
            yield {"text": _talk(chance, long) if number % 11 else "the same text again"}
        elif name == "pairs":
            yield {"prompt": _talk(chance) + "\n", "completion": _talk(chance, long)}
        elif name == "ids":
            ids = [chance.randrange(300) for _ in range(chance.randrange(4, long))]
            yield {"input_ids": ids, "labels": [-100 if place % 3 == 0 else one for place, one in enumerate(ids)]}
        elif name == "choices":
            yield {"prompt": _talk(chance), "chosen": _talk(chance), "rejected": _talk(chance)}
        elif name == "apps":
            solutions = json.dumps([f"print({number}, {one})" for one in range(number % 4)])
            yield {"id": number, "question": _talk(chance, long), "solutions": solutions, "difficulty": "interview"}
        else:
            messages: list[Config] = [{"role": "system", "content": _talk(chance)}] if number % 3 == 0 else []
            for turn in range(1 + number % 4):
                messages.append({"role": "user", "content": _talk(chance)})
                answer: Config = {"role": "assistant", "content": _talk(chance, long)}
                if turn and number % 5 == 0:
                    answer["train"] = False
                messages.append(answer)
            yield {"messages": messages}


def _grid() -> dict[str, Config]:
    """The configurations, by name."""
    grid: dict[str, Config] = {}

    def add(name: str, sources: list[Config] | None = None, **keys: Any) -> None:
        assert name not in grid, name
        grid[name] = {"sources": sources or LISTS, **keys}

    for strategy in ("bfd", "bfd_split", "wrapped", "none"):
        add(strategy, pack={"strategy": strategy})
        add(f"{strategy} parquet", pack={"strategy": strategy}, output={"format": "parquet"})
        add(f"{strategy} windows", pack={"strategy": strategy, "window_tokens": 3000})
        add(f"{strategy} holdout", pack={"strategy": strategy}, holdout={"fraction": 0.2})
        add(f"{strategy} in order", pack={"strategy": strategy, "shuffle": False})
        for mask in ("completion", "assistant", "last_assistant", "all"):
            add(f"{strategy} {mask}", [CHATS], pack={"strategy": strategy}, mask=mask)
    for seed in (1, 2):
        add(f"seed {seed}", seed=seed, holdout={"fraction": 0.3, "by": "example"})
    for overlong in ("truncate", "drop"):
        for keep in ("start", "end"):
            add(f"{overlong} {keep}", truncate={"max_length": 96, "overlong": overlong, "keep": keep})
    for at in ("turns", "paragraphs", "tokens"):
        for overlap in (0, 1, 8):
            cut = {"max_length": 96, "overlong": "split", "split": {"at": at, "overlap": overlap}}
            add(f"split {at} {overlap}", truncate=cut)
    add("prompt limits", truncate={"max_length": 256, "max_prompt_length": 24, "max_completion_length": 48})
    add("without end", [CHATS], mask={"policy": "assistant", "train_end": False})
    add("untrained kept", truncate={"max_length": 96}, keep_untrained=True)
    add("duplicates dropped", duplicates="drop")
    add("duplicates dropped and held out", duplicates="drop", holdout={"fraction": 0.2})
    add("weights", [CHATS | {"weight": 1.0}, TEXTS | {"weight": 3.0}])
    add("weights and repeats", [CHATS | {"weight": 1.0, "repeat": 2}, TEXTS | {"weight": 0.5, "repeat": 3}])
    add("repeats", [CHATS | {"repeat": 3}, TEXTS])
    add("align", pack={"align": 16})
    add("align split", pack={"align": 8}, truncate={"max_length": 96, "overlong": "split"})
    add("few documents a row", pack={"max_docs": 3})
    add("filters", [CHATS | {"filter": {"min_tokens": 40}}, TEXTS], filter={"max_tokens": 300})
    add("first rows", [CHATS | {"max_rows": 30}, TEXTS | {"max_rows": 7}])
    add("a turn each", [CHATS | {"expand": "per_turn"}])
    add("pairs as chats", [PAIRS | {"style": "chat"}])
    add("apps", [APPS])
    add("apps held out", [APPS], holdout={"fraction": 0.3})
    add("apps classic", [APPS | {"apps": {"style": "classic", "max_solutions": 1}}])
    add("tokenized", [IDS])
    add("tokenized wrapped", [IDS], pack={"strategy": "wrapped"})
    add("everything", [CHATS, TEXTS, PAIRS, APPS, IDS], holdout={"fraction": 0.1}, duplicates="drop")
    add("preference", [CHOICES])
    add("preference cut", [CHOICES], truncate={"max_length": 64})
    add("preference parquet", [CHOICES], output={"format": "parquet"}, holdout={"fraction": 0.2})
    add("two workers", run={"workers": 2})
    add("static", run={"workers": 1, "shard": "0/2"})
    return grid


GRID = _grid()
CONTINUED = (
    *("bfd windows", "bfd_split holdout", "wrapped", "none in order", "seed 1", "split turns 8", "untrained kept"),
    *("duplicates dropped and held out", "weights and repeats", "align split", "everything", "bfd parquet"),
    *("preference cut", "preference parquet", "two workers"),
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one small file of each kind."""
    folder = tmp_path_factory.mktemp("grid")
    for place, name in enumerate(("texts", "pairs", "ids", "choices", "apps", "chats")):
        rows = _rows(name, random.Random(place))
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def digests(inputs: Path, tiny_tokenizer: Path, read_rows: Callable[..., list[Config]]) -> dict[str, dict[str, str]]:
    """What every configuration packs."""
    found: dict[str, dict[str, str]] = {}
    for name in GRID:
        out, manifest = _run(name, inputs, tiny_tokenizer)
        ledger = fingerprint(manifest.ledger.to_json())
        found[name] = {"rows": _content(out, manifest, read_rows), "ledger": ledger, "manifest": manifest.hash}
    return found


def _run(name: str, inputs: Path, tokenizer: Path) -> tuple[Path, Manifest]:
    config = GRID[name]
    out = inputs / f"out-{list(GRID).index(name)}"
    run = {"workers": 1, "report": False} | config.get("run", {})
    common = {"out": str(out), "cache": str(inputs / "cache"), "tokenizer": {"path": str(tokenizer)}}
    cut = {"truncate": {"max_length": 256}, "output": {"shard_bytes": 1 << 16}}
    return out, packtrain.run(cut | config | common | {"run": run}, base=inputs)


def _content(out: Path, manifest: Manifest, read_rows: Callable[..., list[Config]]) -> str:
    documents = pq.read_table(out / "documents.parquet").to_pylist()
    return fingerprint(
        {
            "rows": {split: json.dumps(read_rows(out, split)) for split in manifest.splits},
            "documents": json.dumps(documents),
            "certificates": {name: [str(one) for one in split.windows] for name, split in manifest.splits.items()},
        }
    )


def _versions() -> dict[str, str]:
    """What manifest hashes depend on besides the code."""
    return {name: version(name) for name in ("jinja2", "pyarrow", "tokenizers", "packtrain", "fastokens", "gigatoken")}


@pytest.fixture(scope="module")
def recorded(digests: dict[str, dict[str, str]]) -> Config:
    """The record; rewritten first where that was asked for."""
    if REWRITE:
        RECORD.write_text(json.dumps({"versions": _versions(), "digests": digests}, indent=1, sort_keys=True) + "\n")
    record: Config = json.loads(RECORD.read_text())
    return record


def test_the_grid_tells_configurations_apart(digests: dict[str, dict[str, str]]) -> None:
    assert len(GRID) >= 60
    assert len({one["rows"] for one in digests.values()}) >= 60


@pytest.mark.parametrize("what", ["rows", "ledger", "manifest"])
def test_nothing_changed(what: str, digests: dict[str, dict[str, str]], recorded: Config) -> None:
    if what == "manifest" and recorded["versions"] != _versions():
        pytest.skip(f"recorded with other versions: {recorded['versions']}")
    changed = [name for name, one in digests.items() if one[what] != recorded["digests"].get(name, {}).get(what)]
    assert not changed


def test_runs_that_continue(digests: dict[str, dict[str, str]], inputs: Path, tiny_tokenizer: Path) -> None:
    for name in CONTINUED:
        out = inputs / f"out-{list(GRID).index(name)}"
        whole = {path.name: path.read_bytes() for path in out.rglob("*.arrow")}
        (out / "manifest.json").unlink()
        for record in sorted(out.glob("_run/**/shards/*.json"))[::2]:
            (out / json.loads(record.read_bytes())["shard"]["name"]).unlink()
            record.unlink()
        for path in out.rglob("rows.arrow"):
            path.unlink()
        assert _run(name, inputs, tiny_tokenizer)[1].hash == digests[name]["manifest"], name
        assert {path.name: path.read_bytes() for path in out.rglob("*.arrow")} == whole, name
