"""Packed rows as a source: what an export holds comes back, document by document, by a reader of five lines."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.export.export import export

from tests import kit

pytestmark = pytest.mark.xdist_group("exports")


def documents(rows: list[dict[str, Any]]) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(tokens, labels) of every document."""
    out: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for row in rows:
        begin = 0
        for length in row["seq_lengths"]:
            here = slice(begin, begin + length)
            out[tuple(row["input_ids"][here]), tuple(row["labels"][here])] += 1
            begin += length
    return out


APART = """
def documents(row):
    rows, done = [], 0
    for length in row["seq_lengths"]:
        rows.append({key: row[key][done : done + length] for key in ("input_ids", "labels")})
        done += length
    return rows
"""


@pytest.mark.parametrize("shape", ["bfd", "wrapped", "bfd_split"])
def test_an_exported_dataset_is_packed_again(
    made: Callable[[str], Path],
    read_rows: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
    shape: str,
) -> None:
    export(made(shape), tmp_path / "export", "trl")
    (tmp_path / "apart.py").write_text(APART)
    source = {"name": "packed", "format": "python:apart:documents", "path": "export/data/train-*.parquet"}
    # The last token of a document may be a piece of its own.
    again = kit.packed(kit.configure(tmp_path, source, out=str(tmp_path / "again"), keep_untrained=True))
    after = again.rows()
    before = read_rows(made(shape))
    assert sum(documents(before).values()) > 200
    assert documents(after) == documents(before)
    assert len(after) < len(before)
    ledger = again.manifest.ledger.total()
    assert ledger.rows_rejected == {}
    assert ledger.labels_head == 0  # of no document was the first label counted
