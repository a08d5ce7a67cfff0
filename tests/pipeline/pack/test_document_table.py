"""documents.parquet lists every example with what became of it, and each part is read twice to make a dataset."""

import ctypes
import os
import struct
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.pipeline.inputs import scan
from packtrain.schemas.rows import IGNORE_INDEX

from tests import kit

Row = dict[str, Any]
CHANGES: dict[str, Row] = {
    "truncated": {"truncate": {"max_length": 48}, "mask": "assistant"},
    "from the end": {"truncate": {"max_length": 32, "keep": "end"}, "duplicates": "drop"},
    "dropped": {"truncate": {"max_length": 48, "overlong": "drop"}, "holdout": {"fraction": 0.3}},
    "split": {"truncate": {"max_length": 32, "overlong": "split", "split": {"at": "tokens"}}},
    "filtered": {"filter": {"min_tokens": 30}, "mask": "last_assistant"},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", 4000)


def configure(folder: Path, **changes: Any) -> Row:
    chats = kit.corpus("chats", 60)
    kit.write(folder / "chats.jsonl", chats + chats[:9])
    kit.write(folder / "texts.jsonl", kit.corpus("texts", 30))
    sources = [kit.source(kind, path=str(folder / f"{kind}.jsonl")) for kind in ("chats", "texts")]
    sources[0]["repeat"] = 2
    return kit.configure(folder, *sources, **changes)


def in_rows(packed: kit.Packed) -> dict[int, tuple[str, set[int], set[int], int]]:
    """By document: its split, the places of its tokens, those of its labels, and how often its first piece is there."""
    splits: dict[int, str] = {}
    tokens: dict[int, set[int]] = defaultdict(set)
    labels: dict[int, set[int]] = defaultdict(set)
    begins: dict[int, Counter[int]] = defaultdict(Counter)
    for split in packed.manifest.splits:
        for row in packed.rows(split):
            begin = 0
            for document, start, length in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
                places = range(start, start + length)
                tokens[document].update(places)
                trained = (label != IGNORE_INDEX for label in row["labels"][begin : begin + length])
                labels[document].update(place for place, is_trained in zip(places, trained, strict=True) if is_trained)
                begins[document][start] += 1
                splits[document] = split
                begin += length
    return {
        document: (splits[document], tokens[document], labels[document], min(begins[document].values()))
        for document in splits
    }


@pytest.mark.parametrize("name", CHANGES)
def test_it_says_what_the_rows_and_the_ledger_say(tmp_path: Path, name: str) -> None:
    packed = kit.packed(configure(tmp_path, **CHANGES[name]))
    total = packed.manifest.ledger.total()
    examples = packed.examples()
    assert [example["doc_id"] for example in examples] == list(range(total.examples_made))
    rows = in_rows(packed)
    by_tokens: dict[Any, set[frozenset[int]]] = defaultdict(set)
    by_labels: dict[Any, set[frozenset[int]]] = defaultdict(set)
    for example in examples:
        zeros = [example[key] for key in ("copies", "tokens_kept", "tokens_trained", "kept_digest", "trained_digest")]
        if example["outcome"] != "packed":
            assert example["doc_id"] not in rows
            assert zeros == [0] * 5
            continue
        split, tokens, labels, copies = rows[example["doc_id"]]
        assert (example["split"], example["copies"]) == (split, copies)
        assert (example["tokens_kept"], example["tokens_trained"]) == (len(tokens), len(labels))
        by_tokens[example["digest"], example["kept_digest"]].add(frozenset(tokens))
        by_labels[example["digest"], example["trained_digest"]].add(frozenset(labels))
    # One digest, one set of places; and of equal texts, other places have another digest.
    for by_digest in (by_tokens, by_labels):
        assert len(by_digest) > 10
        assert {len(places) for places in by_digest.values()} == {1}
    dropped = Counter(example["outcome"] for example in examples)
    assert dropped.pop("packed") == sum(total.examples_packed.values())
    assert dropped == {reason: count for reason, count in total.examples_dropped.items() if count}
    lost = sum(example["tokens"] - example["tokens_kept"] for example in examples)
    assert lost == sum(total.tokens_truncated.values()) + sum(total.tokens_dropped.values())
    assert lost > 0
    trained = sum(example["tokens_trained"] * example["copies"] for example in examples)
    assert trained == total.labels_trained


def test_digests_tell_which_tokens_are_kept_and_trained(tmp_path: Path) -> None:
    """The same examples under several configurations: equal digests if and only if the same places."""
    kept: dict[tuple[str, int], frozenset[int]] = {}
    trained: dict[tuple[str, int], frozenset[int]] = {}
    for name, changes in CHANGES.items():
        packed = kit.packed({**configure(tmp_path, **changes), "out": str(tmp_path / name)})
        rows = in_rows(packed)
        for example in packed.documents():
            _, tokens, labels, _ = rows[example["doc_id"]]
            for places, digests, key in ((tokens, kept, "kept_digest"), (labels, trained, "trained_digest")):
                assert digests.setdefault((example["id"], example[key]), frozenset(places)) == places
    for digests in (kept, trained):
        assert len({(id, places) for (id, _), places in digests.items()}) == len(digests) > 150


class Openings:
    """Counts how often any process opens the parts in a cache, as the kernel notes it (inotify)."""

    def __init__(self, cache: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK)
        assert self._descriptor >= 0
        for folder in {path.parent for path in cache.glob("encoded/*/*.arrow")}:
            assert self._libc.inotify_add_watch(self._descriptor, bytes(folder), _IN_OPEN | _IN_CLOSE_NOWRITE) > 0

    def counts(self) -> list[int]:
        """How often each part was opened since the last call, fewest first; of parts that were opened at all."""
        names = Counter[bytes]()
        with suppress(BlockingIOError):
            while data := os.read(self._descriptor, 1 << 20):
                begin = 0
                while begin < len(data):
                    _, event, _, length = struct.unpack_from("iIII", data, begin)
                    begin += 16 + length
                    if event & _IN_OPEN:
                        names[data[begin - length : begin].rstrip(b"\0")] += 1
        return sorted(count for name, count in names.items() if name.endswith(b".arrow"))


_IN_OPEN = 0x20
_IN_CLOSE_NOWRITE = 0x10
"""Watched, too, because the kernel merges equal events that follow one another: two openings of one file."""


def texts(path: Path, count: int, words: int = 20) -> Row:
    """A source of texts, of which no two blocks are equal: equal blocks share a part."""
    kit.write(path, [{"text": f"text {number} of them " * words} for number in range(count)])
    return {"name": "texts", "format": "text", "path": str(path)}


CASES: dict[str, tuple[int, Row]] = {
    "train": (2, {"truncate": {"max_length": 48}}),
    "holdout by group": (2, {"holdout": {"fraction": 0.3, "by": "group"}}),
    "in windows": (2, {"pack": {"window_tokens": 3000}}),
    "split": (3, {"truncate": {"max_length": 24, "overlong": "split"}}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_part_is_read_twice(tmp_path: Path, name: str) -> None:
    """For the table, and to lay out; to split overlong documents a third time. The report reads none."""
    readings, changes = CASES[name]
    config = kit.configure(tmp_path, texts(tmp_path / "texts.jsonl", 100), **changes)
    config["run"] = {"workers": 1, "report": True}
    packtrain.plan(config)  # which encodes
    openings = Openings(Path(config["cache"]))
    packtrain.run(config)
    # Parts that an earlier process left are hashed before they are used.
    counts = openings.counts()
    assert len(counts) > 8
    assert set(counts) == {readings + 1}
    assert (Path(config["out"]) / "report.html").exists()
    packtrain.plan(config)
    assert set(openings.counts()) == {readings + 1}


def test_preference_pairs_are_read_twice(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"say {number} " * (1 + number % 9), "chosen": f" it is {number}", "rejected": f" no, {number}"}
        for number in range(200)
    ]
    rows += [{"prompt": "p", "chosen": " a", "rejected": " a"}, {"prompt": "p", "chosen": "", "rejected": " a"}]
    kit.write(tmp_path / "pairs.jsonl", rows)
    source = {"name": "pairs", "format": "preference", "path": str(tmp_path / "pairs.jsonl")}
    config = kit.configure(tmp_path, source, run={"workers": 1}, truncate={"max_length": 24})
    packtrain.plan(config)
    openings = Openings(Path(config["cache"]))
    packed = kit.packed(config)
    counts = openings.counts()
    assert len(counts) > 3
    assert max(counts) == 3, "hashed, read for the table, laid out if a pair of it is packed"
    total = packed.manifest.ledger.total()
    assert Counter(example["outcome"] for example in packed.examples()) == {
        "packed": total.examples_packed["train"],
        **total.examples_dropped,
    }
    assert len(total.examples_dropped) > 0
    assert sum(example["tokens_trained"] for example in packed.examples()) == total.labels_trained


def test_groups_are_listed(tmp_path: Path) -> None:
    problems = [
        {"id": number, "question": f"question {number}", "solutions": f'["print({number})", "print({number} + 0)"]'}
        for number in range(30)
    ]
    kit.write(tmp_path / "apps.jsonl", problems)
    kit.write(tmp_path / "texts.jsonl", kit.corpus("texts", 10))
    sources = [
        {"name": "texts", "format": "text", "path": str(tmp_path / "texts.jsonl")},
        {"name": "apps", "format": "apps", "path": str(tmp_path / "apps.jsonl")},
    ]
    packed = kit.packed(kit.configure(tmp_path, *sources))
    groups = defaultdict[str, list[int]](list)
    for example in packed.examples():
        assert bool(example["group"]) == (example["source"] == "apps")
        if example["group"]:
            groups[example["group"]].append(example["line"])
    assert sorted(groups.values()) == [[line, line] for line in range(1, 31)]
