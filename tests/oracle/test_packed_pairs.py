"""Packed preference pairs against those of `pack.strategy: none`: each side is its prompt and its completion, both keep
the same prompt, labels are the completion, and the ledger says what the limits take.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packtrain.pipeline.dataset.verify import verify

from tests import kit
from tests.stages.select.test_truncate import Keep, shortened, stored

MASKED = -100
CHOSEN, REJECTED = 0, 1


class Pair(NamedTuple):
    """The tokens of a pair."""

    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]


class Side(NamedTuple):
    """A side of a pair, as a row has it."""

    doc_id: int
    ids: tuple[int, ...]
    """With the tokens that stand in the chosen side alone."""
    labels: tuple[int, ...]
    start: int
    """How many tokens of the side were cut off at its beginning."""


def pairs_of(packed: kit.Packed) -> dict[int, Pair]:
    """The pairs of a run with `pack.strategy: none`, by their doc ids."""
    parts = ("prompt_ids", "chosen_ids", "rejected_ids")
    return {
        row["doc_ids"][0]: Pair(*(tuple(row[name]) for name in parts))
        for split in packed.splits
        for row in packed.rows(split)
    }


def sides_of(row: kit.Row) -> Iterator[Side]:
    """The sides of a packed row, in order; of those that share a prompt, with what they do not store."""
    prefix = "branch_" if "branch_parents" in row else "pair_"
    lengths = row[f"{prefix}lengths"]
    unpadded = row.get("seq_lengths_unpadded") or lengths
    parents = row.get("branch_parents") or [0] * len(lengths)
    columns = [row[f"{prefix}{name}"] for name in ("input_ids", "labels", "position_ids")]
    begin = 0
    before: tuple[int, ...] = ()
    for number, (length, tokens, parent) in enumerate(zip(lengths, unpadded, parents, strict=True)):
        ids, labels, positions = (tuple(column[begin : begin + tokens]) for column in columns)
        first = positions[0]
        assert positions == tuple(range(first, first + tokens))
        assert (first > 0) == (parent == 1)
        assert parent == 0 or row["sides"][number] == REJECTED
        path = before[:first] + ids
        yield Side(row["doc_ids"][number], path, (MASKED,) * first + labels, row["doc_starts"][number] - first)
        before = ids
        begin += length


def packed_pairs(packed: kit.Packed, most: int) -> Iterator[tuple[str, Side, Side]]:
    """The split, the chosen and the rejected side of each packed pair.

    Args:
        most: documents of a row.
    """
    for split in packed.splits:
        for row in packed.rows(split):
            sides = list(sides_of(row))
            assert len(sides) <= most
            assert row["sides"] == [CHOSEN, REJECTED] * (len(sides) // 2)
            for chosen, rejected in zip(sides[::2], sides[1::2], strict=True):
                assert chosen.doc_id == rejected.doc_id
                yield split, chosen, rejected


def limited(pair: Pair, config: kit.Config) -> Pair:
    """What the limits leave of a pair."""
    limit = config["truncate"]
    if limit.get("overlong") == "drop":
        return pair
    room = room_of(config)
    keep: Keep = limit.get("keep", "start")
    lengths = (len(pair.prompt), len(pair.chosen), len(pair.rejected))
    kept = shortened(lengths, room, keep, shared=is_shared(config))
    if keep == "end":
        return Pair(*(part[len(part) - length :] for part, length in zip(pair, kept, strict=True)))
    return Pair(*(part[:length] for part, length in zip(pair, kept, strict=True)))


def room_of(config: kit.Config) -> int:
    """The most tokens of a pair: padding of both sides must fit the row as well."""
    devices: int = config["pack"].get("parallel", {}).get("cp", 0)
    multiple: int = config["pack"].get("align", max(2 * devices, 1))
    most: int = config["truncate"]["max_length"]
    return most - multiple + 1


def is_shared(config: kit.Config) -> bool:
    return bool(config["pack"].get("share") == "row")


def reason(pair: Pair, left: Pair, config: kit.Config) -> str | None:
    """Why a pair is left out."""
    if pair.chosen == pair.rejected:
        return "equal"
    size = stored(len(left.prompt), len(left.chosen), len(left.rejected), shared=is_shared(config))
    if config["truncate"].get("overlong") == "drop" and size > room_of(config):
        return "overlong"
    if min(len(left.chosen), len(left.rejected)) <= (not left.prompt):
        return "cut_empty"
    return "cut_equal" if left.chosen == left.rejected else None


def check(packed: kit.Packed, config: kit.Config, pairs: dict[int, Pair], copies: int = 1) -> None:
    """Hold a packed dataset against the pairs of its sources."""
    expected = {doc_id: limited(pair, config) for doc_id, pair in pairs.items()}
    reasons = {doc_id: reason(pair, expected[doc_id], config) for doc_id, pair in pairs.items()}
    counts: Counter[int] = Counter()
    split_of: dict[int, str] = {}
    for split, *sides in packed_pairs(packed, config["pack"].get("max_docs", 1 << 20)):
        doc_id = sides[0].doc_id
        counts[doc_id] += 1
        split_of[doc_id] = split
        pair = pairs[doc_id]
        left = expected[doc_id]
        for side, whole, kept in zip(sides, pair[1:], left[1:], strict=True):
            ids = left.prompt + kept
            # Rows of `pack.align` alone do not say what is padding.
            padding = len(side.ids) - len(ids)
            assert padding in range(config["pack"].get("align", 1))
            assert side.ids == ids + (packed.manifest.pad_id,) * padding
            full = pair.prompt + whole
            assert ids == full[side.start : side.start + len(ids)]
            first = max(len(left.prompt), 1)
            assert side.labels == (MASKED,) * first + ids[first:] + (MASKED,) * padding
    for doc_id, why in reasons.items():
        assert counts[doc_id] == (0 if why else 1 if split_of[doc_id] == "holdout" else copies), (doc_id, why)
    assert {document["doc_id"] for document in packed.documents()} == set(counts)
    for document in packed.documents():
        left = expected[document["doc_id"]]
        assert document["tokens_kept"] == sum(map(len, left))
        assert document["tokens_trained"] == len(left.chosen) + len(left.rejected) - 2 * (not left.prompt)
    check_ledger(packed, config, [(pairs[doc_id], expected[doc_id], times) for doc_id, times in counts.items()])
    ledger = packed.manifest.ledger.total()
    assert ledger.examples_dropped == Counter(filter(None, reasons.values()))


def check_ledger(packed: kit.Packed, config: kit.Config, kept: list[tuple[Pair, Pair, int]]) -> None:
    """The counts of tokens, from (pair, what is kept of it, copies)."""
    packed.manifest.ledger.check()
    ledger = packed.manifest.ledger.total()
    tokens = sum(times * sum(map(len, left)) for _, left, times in kept)
    again = sum(times * min(len(left.prompt), 1 if is_shared(config) else len(left.prompt)) for _, left, times in kept)
    assert ledger.document_tokens == tokens + again
    created = ledger.tokens_created
    assert created.get("repeats", 0) == tokens - sum(sum(map(len, left)) for _, left, _ in kept)
    words = ("overlap", "prompt") if is_shared(config) else ("prompt", "overlap")
    assert [created.get(word, 0) for word in words] == [again, 0]
    assert again > 0
    lost = sum(sum(map(len, pair)) - sum(map(len, left)) for pair, left, _ in kept)
    assert ledger.tokens_truncated == ({"max_length": lost} if lost else {})
    # Without a prompt, both sides lose the label of their first token.
    assert ledger.labels_first_token == sum(2 * times * (not left.prompt) for _, left, times in kept)


VARIANTS: dict[str, tuple[kit.Config, int]] = {
    "short, starts kept": ({"truncate": {"max_length": 96}}, 1),
    "short, ends kept": ({"truncate": {"max_length": 64, "keep": "end"}, "pack": {"strategy": "tight"}}, 1),
    "long pairs dropped": ({"truncate": {"max_length": 160, "overlong": "drop"}}, 1),
    "four documents a row": ({"truncate": {"max_length": 512}, "pack": {"max_docs": 5}}, 1),
    "aligned to 8": ({"truncate": {"max_length": 128}, "pack": {"parallel": {"cp": 4}}}, 1),
    "aligned to 4, ends kept": ({"truncate": {"max_length": 128, "keep": "end"}, "pack": {"parallel": {"cp": 2}}}, 1),
    "aligned to 8, dropped": (
        {"truncate": {"max_length": 128, "overlong": "drop"}, "pack": {"parallel": {"cp": 4, "layout": "thd"}}},
        1,
    ),
    "repeated": ({"sources": [kit.source("choices", repeat=3)]}, 3),
    "held out": ({"holdout": {"fraction": 0.2}, "sources": [kit.source("choices", repeat=2)]}, 2),
}
SHARED: dict[str, tuple[kit.Config, int]] = {
    f"{name}, prompts shared": (kit.merged(keys, {"pack": {"share": "row"}}), copies)
    for name, (keys, copies) in VARIANTS.items()
    if not {"parallel", "max_docs"} & set(keys.get("pack", {}))
} | {
    "aligned to 8, prompts shared": ({"truncate": {"max_length": 128}, "pack": {"align": 8, "share": "row"}}, 1),
    "longer rows, prompts shared": ({"truncate": {"max_length": 96}, "pack": {"row_length": 512, "share": "row"}}, 1),
}


def rows() -> list[kit.Row]:
    """Pairs of usual lengths, and those at the edges: without a prompt, of one token, equal, far too long."""
    made = kit.corpus("choices", 60)
    made += [{"prompt": "", "chosen": text, "rejected": "the end"} for text in ("a", "the", "a longer answer")]
    made += [{"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": "the b", "rejected": "the c"}]
    made += [{"prompt": "say so " * count, "chosen": "yes " * 30, "rejected": "no " * 90} for count in (1, 20, 60, 200)]
    made += [{"prompt": "p", "chosen": "the same " * 90 + "a", "rejected": "the same " * 90 + "b"}]
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs")
    kit.write(path / "choices.jsonl", rows())
    return path


@pytest.fixture(scope="module")
def generated(folder: Path) -> dict[int, Pair]:
    config = kit.configure(folder, "choices", out=str(folder / "none"), pack={"strategy": "none"})
    return pairs_of(kit.packed(kit.merged(config, {"truncate": {"max_length": 1 << 20}})))


@pytest.mark.parametrize("name", [*VARIANTS, *SHARED])
def test_sides_of_generated_pairs(name: str, folder: Path, generated: dict[int, Pair]) -> None:
    keys, copies = (VARIANTS | SHARED)[name]
    config = kit.merged(kit.configure(folder, "choices", out=str(folder / name), pack={}), keys)
    packed = kit.packed(config)
    check(packed, config, generated, copies)
    assert verify(packed.folder, deep=True).sound


REAL: dict[str, kit.Config] = {
    "1,024, starts kept": {"truncate": {"max_length": 1024}},
    "1,024, ends kept": {"truncate": {"max_length": 1024, "keep": "end"}},
    "2,048, dropped": {"truncate": {"max_length": 2048, "overlong": "drop"}, "pack": {"max_docs": 4}},
    "4,096, aligned to 4": {"truncate": {"max_length": 4096}, "pack": {"parallel": {"cp": 2}}},
    "512, aligned to 8, ends kept": {"truncate": {"max_length": 512, "keep": "end"}, "pack": {"parallel": {"cp": 4}}},
    "2,048, prompts shared": {"truncate": {"max_length": 2048}, "pack": {"share": "row"}},
    "512, prompts shared, ends kept": {"truncate": {"max_length": 512, "keep": "end"}, "pack": {"share": "row"}},
}


@pytest.fixture(scope="module")
def real(realdata: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[kit.Config, dict[int, Pair]]:
    """598 real pairs."""
    folder = tmp_path_factory.mktemp("real")
    source = {"name": "real", "format": "preference", "path": str(realdata / "preference" / "dpo_pairs.jsonl")}
    tokenizer = {"path": str(realdata / "tokenizers" / "qwen3")}
    config = kit.configure(folder, source, tokenizer=tokenizer, pack={"strategy": "none"})
    pairs = pairs_of(kit.packed(kit.merged(config, {"truncate": {"max_length": 1 << 20}})))
    assert len(pairs) == 598
    return config, pairs


@pytest.mark.parametrize("name", REAL)
def test_sides_of_real_pairs(name: str, real: tuple[Any, dict[int, Pair]], tmp_path: Path) -> None:
    config, pairs = real
    keys = kit.merged({"out": str(tmp_path / "out"), "pack": {"strategy": "bfd"}}, REAL[name])
    config = kit.merged(config, keys)
    packed = kit.packed(config)
    check(packed, config, pairs)
    assert verify(packed.folder, deep=True).sound
