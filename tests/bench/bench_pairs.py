"""Measures what packing saves of preference pairs: rows, padding, and with `pack.share: row` tokens.

    PACKTRAIN_REALDATA=… python -m tests.bench.bench_pairs [--lengths 2048 4096 8192] [--batches 2 4 8 16]

Prints Markdown tables. Pairs longer than a row are left out, so that all are whole. Beside packed rows stand one pair a
row, and padded batches: both sides of some pairs, each padded to the longest side among them, as TRL's DPOTrainer makes
them. Padding of packed rows is the part of their capacity that holds no token.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import packtrain
from numpy.typing import NDArray

from tests.bench.tables import print_table

PACKAGES = ("packtrain",)


def pack(data: Path, folder: Path, name: str, max_length: int, **pack: str) -> Any:
    """A run over the pairs, whose parts are in one cache."""
    config = {
        "sources": [{"name": "pairs", "format": "preference", "path": str(data / "preference" / "dpo_pairs.jsonl")}],
        "tokenizer": {"path": str(data / "tokenizers" / "qwen3")},
        "truncate": {"max_length": max_length, "overlong": "drop"},
        "pack": pack,
        "out": str(folder / name),
        "cache": str(folder / "cache"),
        "run": {"workers": 1, "report": False},
    }
    return packtrain.run(config)


def sides_of(unpacked: Any) -> NDArray[np.int64]:
    """(P, 2) tokens of both sides of each pair, in the order of the rows."""
    table = unpacked.rows("train")
    prompt, chosen, rejected = (
        np.array([len(ids) for ids in table[name]], np.int64) for name in ("prompt_ids", "chosen_ids", "rejected_ids")
    )
    sides: NDArray[np.int64] = np.stack([prompt + chosen, prompt + rejected], axis=1)
    return sides


def padding_of(sides: NDArray[np.int64], pairs: int) -> float:
    """The share of padded batches that is padding; of a last batch with fewer pairs, too."""
    batches = [sides[first : first + pairs] for first in range(0, len(sides), pairs)]
    padded = sum(batch.size * int(batch.max()) for batch in batches)
    return 1 - int(sides.sum()) / padded


def rows_at(data: Path, folder: Path, max_length: int, batches: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The lines of both tables for rows of one length."""
    lines = []
    for share in ("none", "row"):
        packed = pack(data, folder, f"{max_length}-{share}", max_length, share=share)
        split = packed.splits["train"]
        pairs = packed.ledger.total().examples_packed["train"]
        lines.append(
            [
                f"{max_length:,}", share, f"{pairs:,}", f"{split.rows:,}", f"{1 - split.rows / pairs:.1%}",
                f"{split.fill(max_length):.1%}", f"{split.tokens:,}", f"{split.tokens / pairs:,.0f}",
            ]
        )  # fmt: skip
    # The padded batches are of the pairs that are packed.
    longest = pack(data, folder, f"{max_length}-alone", max_length, strategy="none")
    sides = sides_of(longest)
    sides = sides[sides.sum(axis=1) <= max_length]
    packed = packtrain.open(folder / f"{max_length}-none").splits["train"]
    padding = [f"{max_length:,}", f"{len(sides):,}", *(f"{padding_of(sides, pairs):.1%}" for pairs in batches)]
    return lines, [*padding, f"{1 - packed.fill(max_length):.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 4, 8, 16])
    options = parser.parse_args()
    data = Path(os.environ["PACKTRAIN_REALDATA"])
    rows: list[list[str]] = []
    padding: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for length in options.lengths:
            lines, line = rows_at(data, Path(scratch), length, options.batches)
            rows += lines
            padding.append(line)
    head = ("rows of", "share", "whole pairs", "rows", "fewer than pairs", "full", "tokens", "tokens a pair")
    print_table("Packed pairs", PACKAGES, head, rows)
    batches = [f"padded, {pairs} pairs" for pairs in options.batches]
    print_table("Padding", PACKAGES, ("longest pair", "pairs", *batches, "packed"), padding)


if __name__ == "__main__":
    main()
