"""What must not matter does not matter: 26 configurations, each in some of 13 ways that promise the same rows, or
documents.

The rows are a function of the data and the configuration: not of workers and machines, of files and folders, of
what is in the cache, of a kill, or of the tokenizer's engine. A document is a function of its own row: it is the same
among other rows, in another order, and in a stream.
"""

import json
import random
import shutil
import signal
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import kit
from tests.support.mortal import mortal

Row = dict[str, Any]
Config = dict[str, Any]
Pieces = Counter[tuple[Any, ...]]

SEED = 7
SMALL = {"max_length": 96}


@dataclass(frozen=True)
class Case:
    """A configuration.

    Attributes:
        sources: kinds of rows, or sources.
        keys: of the configuration.
        without: the changes that may matter here.
        copies: how many copies of a document doubled inputs give.
    """

    sources: tuple[Config | str, ...]
    keys: Config
    without: tuple[str, ...]
    copies: int

    def config(self, folder: Path) -> Config:
        """The configuration in a folder, with its inputs."""
        kit.write(folder / "held.jsonl", HELD)
        return kit.configure(folder, *self.sources, **self.keys)


def case(*sources: Config | str, without: tuple[str, ...] = (), copies: int = 2, **keys: Any) -> Case:
    """A configuration of some sources; without any, of three kinds."""
    return Case(sources or ("chats", "texts", "pairs"), keys, without, copies)


source = kit.source
ELSEWHERE = ("neighbours", "stream")
"""What documents depend on the others, and a stream does not take."""
HELD = [{"question": row["text"]} for row in kit.corpus("texts", 40)[1:40:4]]
"""Evaluation rows of which the texts have been seen."""

CASES: dict[str, Case] = {
    "bfd": case(),
    "bfd_split": case(pack={"strategy": "bfd_split"}, truncate=SMALL),
    "wrapped": case(pack={"strategy": "wrapped"}, without=ELSEWHERE),
    "none": case(pack={"strategy": "none", "shuffle": False}),
    "tight": case("ids", "pairs", pack={"strategy": "tight"}, mask="all"),
    "windows": case(
        "chats", "texts", "pairs", "alpaca", pack={"window_tokens": 3000}, without=("many files", "files in order")
    ),
    "few documents a row": case(pack={"max_docs": 3, "align": 8}, mask="all"),
    "divided rows": case(pack={"parallel": {"cp": 2, "layout": "thd"}}),
    "held out": case(holdout={"fraction": 0.3, "by": "example"}, seed=3),
    "problems held out": case("apps", holdout={"fraction": 0.3}),
    "every turn": case("chats", mask="assistant", keep_untrained=True),
    "the last turn": case("chats", "sharegpt", mask={"policy": "last_assistant", "train_end": False}),
    "a turn each": case(source("chats", expand="per_turn")),
    "thoughts and calls": case(
        "thoughts",
        mask={"policy": "assistant", "thoughts": "last", "tool_calls": "mask"},
        tokenizer={"chat_template": kit.TOOLS},
    ),
    "late system": case("chats", tokenizer={"chat_template": kit.LATE_SYSTEM}, truncate={"max_length": 512}),
    "split at turns": case(truncate=SMALL | {"overlong": "split", "split": {"at": "turns", "overlap": 3}}),
    "split at paragraphs": case(
        "texts", "pairs", truncate=SMALL | {"overlong": "split", "split": {"at": "paragraphs"}}
    ),
    "the end kept": case(truncate=SMALL | {"keep": "end"}),
    "filtered": case(
        source("chats", filter={"min_tokens": 40}),
        source("texts", where="LENGTH(text) > 60"),
        truncate=SMALL | {"overlong": "drop"},
        filter={"max_tokens": 300},
    ),
    "duplicates dropped": case("texts", "chats", duplicates="drop", without=("stream",), copies=1),
    "repeated": case(source("chats", repeat=3), "texts", source("pairs", style="chat")),
    "mixed": case(source("chats", weight=1.0), source("texts", weight=3.0), without=ELSEWHERE),
    "weighted": case(source("chats", loss_weight=2.5), "texts", loss={"normalize": "document"}),
    "decontaminated": case("texts", "chats", contamination={"against": "held.jsonl", "action": "drop"}),
    "found formats": case(*(source(kind, format="auto") for kind in ("alpaca", "sharegpt", "ids"))),
    "preference": case("choices", holdout={"fraction": 0.2}, truncate={"max_length": 128}),
    "preference, not packed": case(
        "choices", pack={"strategy": "none"}, truncate={"max_length": 64}, without=("stream",)
    ),
}


# What is compared


def pieces(packed: kit.Packed, split: str) -> Pieces:
    """(tokens, labels, weights) of every piece of a split; of preference data, the parts of every pair."""
    found: Pieces = Counter()
    for row in packed.rows(split):
        if "chosen_ids" in row:
            found[tuple(tuple(row[name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids"))] += 1
            continue
        # Those of pairs have names of their own.
        row = {name.removeprefix("pair_"): column for name, column in row.items()}
        found += cut(row, row["lengths" if "sides" in row else "seq_lengths"])
    return found


def cut(row: Row, lengths: list[int]) -> Pieces:
    """The pieces of one row, whose positions begin again in each."""
    found: Pieces = Counter()
    begin = 0
    for length in lengths:
        here = slice(begin, begin + length)
        assert row["position_ids"][here] == list(range(length))
        found[tuple(row["input_ids"][here]), tuple(row["labels"][here]), tuple(row.get("loss_weights", ())[here])] += 1
        begin += length
    return found


def places(packed: kit.Packed) -> list[tuple[Any, ...]]:
    """Where each document comes from, its line counted over all files of its source; see `in_many_files`."""
    return [
        (one["source"], one["group"], one["tokens"], one["line"] + int(f"0{one['file'].partition('rows-')[2]}"))
        for one in packed.documents()
    ]


# The changes: each takes a case and a new folder, and packs


def rewritten(case: Case, folder: Path, write: Callable[[Config, list[Row]], object]) -> Config:
    """The configuration of a case whose inputs are written in another way."""
    config = case.config(folder)
    sources = [dict(one) for one in config["sources"]]
    for one in sources:
        path = folder / one["path"]
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        path.unlink()
        write(one, rows)
    return config | {"sources": sources}


def two_workers(case: Case, folder: Path) -> kit.Packed:
    return kit.packed(kit.merged(case.config(folder), {"run": {"workers": 2}}))


def a_share(case: Case, folder: Path) -> kit.Packed:
    """The second of three runs comes first, and does what the others leave; the next one has nothing to do."""
    config = case.config(folder)
    kit.packed(kit.merged(config, {"run": {"shard": "1/3"}}))
    return kit.packed(kit.merged(config, {"run": {"shard": "0/3"}}))


def ray(case: Case, folder: Path) -> kit.Packed:
    pytest.importorskip("ray")
    return kit.packed(kit.merged(case.config(folder), {"run": {"executor": "ray", "workers": 2}}))


def in_many_files(case: Case, folder: Path) -> Config:
    """Seven rows to a file, in a folder that is named, the last files written first."""

    def write(one: Config, rows: list[Row]) -> None:
        one["path"] = one["name"]
        for begin in reversed(range(0, len(rows), 7)):
            kit.write(folder / one["name"] / f"rows-{begin:03}.jsonl", rows[begin : begin + 7])

    return rewritten(case, folder, write)


def many_files(case: Case, folder: Path) -> kit.Packed:
    return kit.packed(in_many_files(case, folder))


def files_in_order(case: Case, folder: Path) -> kit.Packed:
    """Two files that a pattern finds in the order of their names, and a third named after them."""

    def write(one: Config, rows: list[Row]) -> None:
        third = len(rows) // 3
        one["path"] = [f"{one['name']}/[b-z]*.jsonl", f"{one['name']}/a.jsonl"]
        for name, some in (("c", rows[third : 2 * third]), ("b", rows[:third]), ("a", rows[2 * third :])):
            kit.write(folder / one["name"] / f"{name}.jsonl", some)

    return kit.packed(rewritten(case, folder, write))


def another_folder(case: Case, folder: Path) -> kit.Packed:
    """Inputs, tokenizer, cache and output elsewhere, and paths that begin there."""
    config = case.config(folder / "so" / "far away")
    place = folder / "so" / "far away"
    shutil.copytree(config["tokenizer"]["path"], place / "another tokenizer")
    config["tokenizer"]["path"] = "another tokenizer"
    config |= {"out": "new/out", "cache": "../cache"}
    kit.packed(config, base=place)
    return kit.Packed(place / "new" / "out")


def warm_cache(case: Case, folder: Path) -> kit.Packed:
    """All that another run encoded is there, and this run has other shards."""
    config = case.config(folder)
    kit.packed(config)
    parts = sorted((folder / "cache" / "encoded").rglob("*.arrow"))
    files = [part.stat().st_ino for part in parts]
    again = kit.merged(config, {"out": str(folder / "again"), "output": {"shard_bytes": "64KiB"}})
    made = kit.packed(again)
    assert parts == sorted((folder / "cache" / "encoded").rglob("*.arrow"))
    assert files == [part.stat().st_ino for part in parts]
    return made


def engine(case: Case, folder: Path) -> kit.Packed:
    """The reference in place of the fast one, and jinja2 in place of the trace."""
    return kit.packed(kit.merged(case.config(folder), {"tokenizer": {"engine": "tokenizers", "trace": False}}))


def command(case: Case, folder: Path) -> kit.Packed:
    """The command line, with the configuration as a file."""
    config = case.config(folder)
    done = kit.cli("run", kit.saved(config), cwd=folder)
    assert done.code == 0, done.err
    return kit.Packed(Path(config["out"]))


def killed(case: Case, folder: Path) -> kit.Packed:
    """Killed as a file is about to get its name, twice, and started again."""
    config = case.config(folder)
    for at in (zlib.crc32(repr(case).encode()) % 8 + 3, 4):  # the second run begins with fewer to do
        ended = mortal(folder / "puts", "run", kit.saved(config), at=at)
        assert ended.code == -signal.SIGKILL, ended
        assert not (folder / "out" / "manifest.json").exists()
    return kit.packed(config)


def shares_at_once(case: Case, folder: Path) -> kit.Packed:
    """Three runs begin together; one of them is killed, unless the others have done everything by then."""
    config = case.config(folder)

    def share(number: int) -> int:
        file = kit.saved(kit.merged(config, {"run": {"shard": f"{number}/3"}}), f"share-{number}.json")
        return mortal(folder / f"puts-{number}", "run", file, at=4 * (number == 1)).code

    with ThreadPoolExecutor(3) as threads:
        codes = list(threads.map(share, range(3)))
    assert codes[0] == codes[2] == 0
    assert codes[1] in (0, -signal.SIGKILL)
    return kit.Packed(folder / "out")


def neighbours(case: Case, folder: Path) -> kit.Packed:
    """Every row stands twice in its file, and somewhere else."""

    def write(one: Config, rows: list[Row]) -> None:
        both = rows + rows
        random.Random(SEED).shuffle(both)
        kit.write(folder / one["path"], both)

    return kit.packed(rewritten(case, folder, write))


def stream(case: Case, folder: Path, split: str) -> Pieces:
    """Two epochs of a split without shards, from windows of a few files."""
    from packtrain.training import PackedStream

    config = in_many_files(case, folder)
    config["sources"] = [one | {"path": str(folder / one["path"])} for one in config["sources"]]
    if "contamination" in config:
        config["contamination"] |= {"against": str(folder / "held.jsonl")}
    rows = PackedStream(config, rows_per_step=1, window_bytes=24_000, workers=1, epochs=2, split=split)
    found: Pieces = Counter()
    for batch in rows:
        row: Row = {
            name: batch[name][0].tolist()
            for name in ("input_ids", "labels", "position_ids", "loss_weights")
            if name in batch
        }
        found += cut(row, batch["cu_seq_lens_q"].diff().tolist())
    return found


SAME_ROWS: dict[str, Callable[[Case, Path], kit.Packed]] = {
    "workers": two_workers,
    "share": a_share,
    "ray": ray,
    "many files": many_files,
    "files in order": files_in_order,
    "another folder": another_folder,
    "warm cache": warm_cache,
    "engine": engine,
    "command": command,
    "killed": killed,
    "shares at once": shares_at_once,
}
CHANGES = (*SAME_ROWS, "neighbours", "stream")
FEW = {"ray": "bfd_split", "shares at once": "windows"}
"""What takes long is tried on one."""


def pairs() -> list[Any]:
    """Every case with each fifth change, so that a change meets five cases, and every other one as a stream; five
    of six are slow.
    """
    found = []
    for number, name in enumerate(CASES):
        for place, change in enumerate(CHANGES):
            every = 2 if change == "stream" else 5
            chosen = name == FEW[change] if change in FEW else (number + place) % every == 0
            if not chosen or change in CASES[name].without:
                continue
            slow = change in (*FEW, "killed") or (number + place) % 6 > 0
            found.append(pytest.param(name, change, marks=[pytest.mark.slow] * slow, id=f"{name}-{change}"))
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], kit.Packed]:
    """What a case packs without any change."""
    made: dict[str, kit.Packed] = {}

    def pack(name: str) -> kit.Packed:
        if name not in made:
            made[name] = kit.packed(CASES[name].config(tmp_path_factory.mktemp("plain")))
        return made[name]

    return pack


@pytest.mark.parametrize(("name", "change"), pairs())
def test_it_does_not_matter(name: str, change: str, plain: Callable[[str], kit.Packed], tmp_path: Path) -> None:
    expected, case = plain(name), CASES[name]
    if change == "stream":
        for split in expected.splits:
            documents = pieces(expected, split)
            assert stream(case, tmp_path / split, split) == documents + documents
        return
    made = SAME_ROWS.get(change, neighbours)(case, tmp_path)
    if change == "neighbours":
        for split in expected.splits:
            documents = pieces(expected, split)
            assert pieces(made, split) == Counter({one: case.copies * count for one, count in documents.items()})
        return
    assert made.digest() == expected.digest()
    assert made.ledger == expected.ledger
    if change != "files in order":
        assert places(made) == places(expected)


@pytest.mark.slow
def test_the_cases_are_different(plain: Callable[[str], kit.Packed]) -> None:
    """Or a change could not matter, because nothing does."""
    assert len({plain(name).digest() for name in CASES}) == len(CASES) >= 25
    for name, case in CASES.items():
        config = case.config(plain(name).folder.parent)
        if config.get("holdout"):
            assert sorted(plain(name).splits) == ["holdout", "train"]
