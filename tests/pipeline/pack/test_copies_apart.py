"""Copies of an example stand in different rows, at the cost of at most 1 % of the rows; what remains is counted."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import packtrain
import pytest

from tests import kit
from tests.kit import Config, Packed

MIXTURES: dict[str, list[Config]] = {
    "all three times": [{"count": 300, "repeat": 3}],
    "one of two sources": [{"count": 400, "repeat": 3}, {"count": 500}],
    "by weight": [{"count": 200, "weight": 0.8}, {"count": 700, "weight": 1.0}],
}
SHAPES: dict[str, Config] = {
    "bfd": {},
    "bfd_split": {"pack": {"strategy": "bfd_split"}, "truncate": {"max_length": 96}},
    "wrapped": {"pack": {"strategy": "wrapped"}},
    "bfd, windows": {"pack": {"window_tokens": 30_000}},
    "bfd, aligned, few documents a row": {"pack": {"align": 16, "max_docs": 4}},
    "bfd, split": {"truncate": {"max_length": 96, "overlong": "split"}},
    "tight, short rows": {"pack": {"strategy": "tight"}, "truncate": {"max_length": 128}},
    "bfd, long rows": {"truncate": {"max_length": 1024}},
    "tight, long rows": {"pack": {"strategy": "tight"}, "truncate": {"max_length": 1024}},
}


def packed(folder: Path, sources: list[Config], keys: Config) -> Packed:
    """A run over documents of 10 to 300 tokens, about lognormal."""
    chance = random.Random(7)
    named = []
    for number, section in enumerate(sources):
        lengths = [min(300, 10 + int(chance.lognormvariate(3.8, 0.6))) for _ in range(section["count"])]
        kit.write(folder / f"s{number}.jsonl", [{"input_ids": [chance.randrange(300)] * size} for size in lengths])
        named.append(kit.source("ids", name=f"s{number}", path=f"s{number}.jsonl") | section)
        del named[-1]["count"]
    return kit.packed(kit.configure(folder, *named, **keys))


def pieces_of_rows(made: Packed) -> Iterator[list[tuple[int, int]]]:
    """The pieces of each row: document and first token."""
    for row in made.rows():
        yield list(zip(row["doc_ids"], row["doc_starts"], strict=True))


def together(made: Packed) -> int:
    """Further copies of pieces in one row."""
    return sum(len(row) - len(set(row)) for row in pieces_of_rows(made))


def least_rows(made: Packed, keys: Config) -> int:
    """Rows of the same pieces if nothing is kept apart."""
    pack: dict[str, Any] = keys.get("pack", {})
    strategy, most = pack.get("strategy", "bfd"), pack.get("max_docs")
    sizes = [size for row in made.rows() for size in row["seq_lengths"]]
    return packtrain.plan_rows(sizes, made.manifest.max_length, strategy, max_docs=most).rows


@pytest.mark.parametrize(
    ("shape", "mixture"),
    [
        *(
            pytest.param(shape, "all three times", marks=[pytest.mark.slow] * (place % 6 > 0))
            for place, shape in enumerate(SHAPES)
        ),
        *(pytest.param("bfd", mixture, marks=pytest.mark.slow) for mixture in list(MIXTURES)[1:]),
    ],
)
def test_no_row_has_two_copies(shape: str, mixture: str, tmp_path: Path) -> None:
    keys = SHAPES[shape]
    made = packed(tmp_path, MIXTURES[mixture], keys)
    copies = Counter(piece for row in pieces_of_rows(made) for piece in row)
    assert max(copies.values()) == 3
    assert together(made) == 0
    assert made.manifest.ledger.total().copies_together == 0
    if "window_tokens" not in keys.get("pack", {}):
        least = least_rows(made, keys)
        assert made.manifest.splits["train"].rows <= least + max(1, least // 100)


def test_a_few_that_are_repeated_very_often_are_counted(tmp_path: Path) -> None:
    made = packed(tmp_path, [{"count": 12, "repeat": 20}, {"count": 400}], {"truncate": {"max_length": 4096}})
    assert together(made) == made.manifest.ledger.total().copies_together > 0
    least = least_rows(made, {})
    assert made.manifest.splits["train"].rows <= least + max(1, least // 100)
