"""`packtrain diff` of runs that differ in one thing each, held against their rows as plain values."""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.rows import IGNORE_INDEX

from tests import kit

Row = dict[str, Any]
Make = Callable[..., Path]
PAIRS, TEXTS = 60, 30


def said(first: int, count: int) -> str:
    return " ".join(kit.WORDS[(first * 7 + 5 * at) % len(kit.WORDS)] for at in range(count))


def pairs(count: int = PAIRS, first: int = 0) -> list[Row]:
    return [
        {"prompt": f"{at}: {said(at, 3 + at % 9)}?", "completion": f" {said(at + 1, 2 + at % 23)}"}
        for at in range(first, first + count)
    ]


def texts(count: int = TEXTS, first: int = 0) -> list[Row]:
    return [{"text": f"{at}. {said(at, 4 + at * 3 % 40)}"} for at in range(first, first + count)]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Runs a configuration that differs from the plain one in what is given; one with the same name runs once.

    `rows` are the rows of some sources, `keys_of` their keys, `file` is the name of the file of chat.
    """
    folder = tmp_path_factory.mktemp("runs")

    def made(
        name: str, rows: dict[str, list[Row]] | None = None, keys_of: Row | None = None, file: str = "chat", **keys: Any
    ) -> Path:
        out = folder / name
        if out.exists():
            return out
        sources = []
        for source, some in sorted({"chat": pairs(), "text": texts(), **(rows or {})}.items()):
            path = kit.write(folder / "data" / name / f"{file if source == 'chat' else source}.jsonl", some)
            form = "prompt_completion" if source == "chat" else "text"
            sources.append({"name": source, "format": form, "path": str(path), **(keys_of or {}).get(source, {})})
        plain = {"out": str(out), "truncate": {"max_length": 64}, "holdout": {"fraction": 0.2}}
        return kit.packed(kit.configure(folder, *sources, **kit.merged(plain, keys))).folder

    return made


def diff(a: Path | str, b: Path | str, *options: str) -> Row:
    """The difference as JSON."""
    done = kit.cli("diff", a, b, "--json", *options)
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
    found: Row = json.loads(done.out)
    return found


def numbers(found: Row) -> dict[str, int]:
    """What is not 0, by its kind."""
    held = {"same": found["examples"]["same"], **found["examples"]["counts"]}
    return {kind: number for kind, number in held.items() if number}


def changes(found: Row, *sections: str) -> dict[str, tuple[Any, Any]]:
    return {one["key"]: (one["a"], one["b"]) for one in found["changes"] if one["section"] in sections}


Stands = dict[str, tuple[str, Counter[tuple[int, int]], Counter[tuple[int, int]], int]]
"""By id: split, (place, token) of each token of one copy, the same of the trained ones, copies."""


def stands(out: Path) -> Stands:
    """What the rows hold of every example, by the slow way."""
    names = {document["doc_id"]: document["id"] for document in kit.Packed(out).documents()}
    tokens: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    trained: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    splits: dict[str, str] = {}
    for split in ("train", "holdout"):
        for row in kit.Packed(out).rows(split):
            at = 0
            for doc, start, size in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
                for step in range(size):
                    key = (start + step, row["input_ids"][at + step])
                    tokens[names[doc]][key] += 1
                    trained[names[doc]][key] += row["labels"][at + step] != IGNORE_INDEX
                splits[names[doc]] = split
                at += size
    assert set(tokens) == set(names.values())
    return {name: (splits[name], each, +trained[name], min(each.values())) for name, each in tokens.items()}


def expected(a: Stands, b: Stands, *, rows_cut: bool = False) -> dict[str, int]:
    """What a diff must say, if every copy is cut alike and no token stands in two pieces of one copy.

    Args:
        rows_cut: whether rows cut documents: which of their labels the further pieces lose does not count.
    """
    both = a.keys() & b.keys()

    def once(counts: Counter[tuple[int, int]], copies: int) -> dict[tuple[int, int], int]:
        return {key: count // copies for key, count in counts.items()}

    changed = {name for name in both if once(a[name][1], a[name][3]) != once(b[name][1], b[name][3])}
    labels = {name for name in both - changed if once(a[name][2], a[name][3]) != once(b[name][2], b[name][3])}
    if rows_cut:
        # A label less in one of them, at the first token of a piece.
        assert labels
        assert all(sum((a[name][2] - b[name][2]).values()) <= 2 for name in labels)
        labels = set()
    found = {
        "same": len(both - changed - labels),
        "only_a": len(a.keys() - both),
        "only_b": len(b.keys() - both),
        "tokens": len(changed),
        "labels": len(labels),
        "copies": sum(a[name][3] != b[name][3] for name in both),
        "moved": sum(a[name][0] != b[name][0] for name in both),
    }
    return {name: number for name, number in found.items() if number}


CHANGES: dict[str, tuple[Row, dict[str, tuple[Any, Any]]]] = {
    "longer": ({"truncate": {"max_length": 128}}, {"truncate.max_length": (64, 128)}),
    "from the end": (
        {"truncate": {"max_length": 32, "keep": "end"}},
        {"truncate.max_length": (64, 32), "truncate.keep": ("start", "end")},
    ),
    "all trained": ({"mask": "all"}, {"mask.policy": ("completion", "all")}),
    "seed": ({"seed": 7}, {"seed": (42, 7)}),
    "repeated": ({"keys_of": {"chat": {"repeat": 3}}}, {"sources.chat.repeat": (None, 3)}),
    "cut up": (
        {"truncate": {"max_length": 32, "overlong": "split", "split": {"at": "tokens"}}},
        {
            "truncate.max_length": (64, 32),
            "truncate.overlong": ("truncate", "split"),
            "truncate.split.at": ("turns", "tokens"),
        },
    ),
    "wrapped": ({"pack": {"strategy": "wrapped"}}, {"pack.strategy": ("bfd", "wrapped")}),
    "fewer": ({"filter": {"min_tokens": 20}}, {"filter.min_tokens": (None, 20)}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_key(make: Make, name: str) -> None:
    keys, differs = CHANGES[name]
    a, b = make("base"), make(name, **keys)
    found = diff(a, b)
    assert changes(found, "configuration", "tokenizer", "encoding", "versions", "reading", "inputs") == differs
    rows_cut = name == "wrapped"
    assert numbers(found) == expected(stands(a), stands(b), rows_cut=rows_cut)
    assert not found["identical"]
    labels = tuple(kit.Packed(out).ledger["chat"]["labels_trained"] for out in (a, b))
    assert changes(found, "ledger").get("chat.labels_trained", labels) == labels
    back = diff(b, a)
    assert {(one["section"], one["key"], one["b"], one["a"]) for one in back["changes"]} == {
        (one["section"], one["key"], one["a"], one["b"]) for one in found["changes"]
    }
    assert numbers(back) == expected(stands(b), stands(a), rows_cut=rows_cut)


def test_a_dataset_and_itself(make: Make) -> None:
    a, b = make("base"), make("again")
    found = diff(a, b)
    assert found["identical"]
    assert (found["changes"], found["examples"]) == ([], None)
    assert kit.cli("diff", a, b).out.startswith("A and B are the same dataset, byte for byte")


def test_inputs(make: Make) -> None:
    base = make("base")
    found = diff(base, make("appended", {"chat": pairs(PAIRS + 8)}))
    assert list(changes(found, "inputs")) == ["chat/chat"]
    assert numbers(found) == {"same": PAIRS + TEXTS, "only_b": 8}
    assert found["examples"]["named"]["only_b"] == [f"chat/chat:{PAIRS + at + 1}" for at in range(8)]
    added = diff(base, make("added", {"more": texts(10, 500)}))
    assert changes(added, "configuration")["sources.more.format"] == (None, "text")
    assert changes(added, "inputs")["more/more"][0] is None
    assert numbers(added) == {"same": PAIRS + TEXTS, "only_b": 10}
    rows = pairs()
    rows[3] = {"prompt": "what?", "completion": " something else"}
    assert diff(base, make("changed", {"chat": rows}))["examples"]["named"] == {"tokens": ["chat/chat:4"]}


def test_examples_are_found_again_whatever_their_ids(make: Make) -> None:
    base = make("base")
    renamed = diff(base, make("renamed", file="talk"))
    assert numbers(renamed) == {"same": TEXTS, "only_a": PAIRS, "only_b": PAIRS}
    assert renamed["examples"]["alike"] == PAIRS + TEXTS
    topped = make("topped", {"chat": [*pairs(1, 900), *pairs()]})
    assert diff(base, topped)["examples"]["alike"] == PAIRS + TEXTS
    assert f"  {PAIRS + TEXTS} have the same tokens in both" in kit.cli("diff", base, topped).out


SHORT = {"max_length": 24, "keep": "end"}


@pytest.mark.parametrize(
    ("truncate", "pack"), [({}, {"align": 8}), (SHORT, {"parallel": {"cp": 4}})], ids=["align", "thd of cut documents"]
)
def test_padding_is_no_token(make: Make, truncate: Row, pack: Row) -> None:
    plain = make("short", truncate=truncate) if truncate else make("base")
    found = diff(plain, make(f"padded-{len(truncate)}", truncate=truncate, pack=pack))
    assert numbers(found) == {"same": PAIRS + TEXTS}
    assert changes(found, "rows")["train.tokens"][1] > changes(found, "rows")["train.tokens"][0]


def test_preference_pairs_that_are_not_packed_are_refused(make: Make, tmp_path: Path) -> None:
    pairs = kit.packed(kit.configure(tmp_path, "choices", pack={"strategy": "none"})).folder
    done = kit.cli("diff", make("base"), pairs)
    assert (done.code, done.out) == (2, "")
    assert str(pairs) in done.err


@pytest.mark.parametrize("kept", [0, 64])
@pytest.mark.parametrize("which", ["train/shards/*", "documents.parquet"])
def test_damage_is_refused(make: Make, tmp_path: Path, which: str, kept: int) -> None:
    a, b = make("base"), tmp_path / "b"
    shutil.copytree(make("seed", seed=7), b)
    path = next(b.glob(which))
    data = path.read_bytes()
    path.unlink()
    if kept:
        path.write_bytes(data[:-kept])
    for one, other in ((a, b), (b, a)):
        done = kit.cli("diff", one, other)
        assert (done.code, done.out) == (2, "")
        assert str(b) in done.err
