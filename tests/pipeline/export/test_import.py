"""Packed rows of other tools as a source: what an export holds comes back, without a tokenizer's work."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.export.driver import export
from packtrain.pipeline.export.options import export_options
from packtrain.pipeline.run.driver import run

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


PATHS = {"trl": "data/train-*.parquet", "megatron": "train", "mds": "train"}
"""What `path` names of an export, by its format."""


@pytest.mark.parametrize("to", PATHS)
@pytest.mark.parametrize("shape", ["bfd", "wrapped", "bfd_split"])
def test_an_exported_dataset_is_packed_again(
    made: Callable[[str], Path],
    little: Any,
    read_rows: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
    to: str,
    shape: str,
) -> None:
    export(made(shape), tmp_path / "export", export_options(to), workers=1)
    config = {
        "out": "again",
        "cache": str(tmp_path / "cache"),
        "tokenizer": json.loads(little.config.read_text())["tokenizer"],
        "sources": [
            {
                "name": "packed",
                "format": "tokenized",
                "path": str(tmp_path / "export" / PATHS[to]),
                "keys": {"lengths": "seq_lengths"},
            }
        ],
        "keep_untrained": True,  # the last token of a document may be a piece of its own
        "truncate": {"max_length": 256},
        "run": {"workers": 1, "report": False},
    }
    manifest = run(config, base=tmp_path)
    before, after = read_rows(made(shape)), read_rows(tmp_path / "again")
    assert sum(documents(before).values()) > 200
    assert documents(after) == documents(before)
    assert len(after) < len(before)
    ledger = manifest.ledger.total()
    assert ledger.rows_rejected == {}
    assert ledger.labels_head == 0  # of no document was the first label counted
