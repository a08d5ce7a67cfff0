"""Packed rows of other tools as a source: what an export holds comes back, without a tokenizer's work."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
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


def packed_again(folder: Path, path: str, keys: dict[str, str]) -> tuple[Any, list[dict[str, Any]]]:
    """The manifest and the rows of packed rows that are packed again, in rows of 256 tokens."""
    source = {"name": "packed", "format": "tokenized", "path": path, "keys": keys}
    # The last token of a document may be a piece of its own.
    packed = kit.packed(kit.configure(folder, source, out=str(folder / "again"), keep_untrained=True))
    return packed.manifest, packed.rows()


@pytest.mark.parametrize("shape", ["bfd", "wrapped", "bfd_split"])
def test_an_exported_dataset_is_packed_again(
    made: Callable[[str], Path],
    read_rows: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
    shape: str,
) -> None:
    export(made(shape), tmp_path / "export", "trl")
    manifest, after = packed_again(tmp_path, "export/data/train-*.parquet", {"lengths": "seq_lengths"})
    before = read_rows(made(shape))
    assert sum(documents(before).values()) > 200
    assert documents(after) == documents(before)
    assert len(after) < len(before)
    ledger = manifest.ledger.total()
    assert ledger.rows_rejected == {}
    assert ledger.labels_head == 0  # of no document was the first label counted


MASKS: dict[str, tuple[str, ...]] = {
    "labels": ("labels",),
    "completion_mask": ("completion_mask",),
    "both masks": ("completion_mask", "assistant_masks"),
    "nothing": (),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "strategy", "container"),
    [
        ("labels", "bfd", "parquet"),
        ("completion_mask", "bfd", "saved"),
        ("both masks", "bfd_split", "parquet"),
        ("nothing", "bfd_split", "saved"),
        ("labels", "wrapped", "saved"),
    ],
)
def test_rows_that_trl_packed(tmp_path: Path, what: str, strategy: str, container: str) -> None:
    """What TRL's collator makes of a batch, document by document, is what is packed again."""
    import datasets
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    chance = random.Random(5)
    rows = []
    for _ in range(400):
        ids = [chance.randrange(10, 200) for _ in range(chance.randrange(1, 40))]
        masks = {name: [int(chance.random() < 0.6) for _ in ids] for name in ("completion_mask", "assistant_masks")}
        labels = {"labels": [token if chance.random() < 0.6 else -100 for token in ids]}
        rows.append({"input_ids": ids} | {name: (masks | labels)[name] for name in MASKS[what]})
    packed = pack_dataset(datasets.Dataset.from_list(rows), 32, strategy)
    if container == "saved":
        packed.save_to_disk(str(tmp_path / "rows"), num_shards=2)
    else:
        packed.to_parquet(str(tmp_path / "rows"))
    manifest, again = packed_again(tmp_path, "rows", {} if strategy == "wrapped" else {"lengths": "seq_lengths"})
    assert manifest.ledger.total().rows_rejected == {}

    folded = [with_labels(row) for row in packed.with_format(None).to_list()]
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(folded)
    ids, labels, places = (batch[name][0].tolist() for name in ("input_ids", "labels", "position_ids"))
    starts = [place for place, position in enumerate(places) if position == 0]
    expected = Counter(
        (tuple(ids[begin:end]), tuple(labels[begin:end])) for begin, end in pairwise([*starts, len(ids)])
    )
    assert documents(again) == expected
    assert sum(expected.values()) >= (200 if strategy == "wrapped" else 400)


def with_labels(row: dict[str, Any]) -> dict[str, Any]:
    """A row as SFTTrainer prepares it for its collator: masks become labels."""
    masks = [row.pop(name) for name in ("completion_mask", "assistant_masks") if name in row]
    labels = row.get("labels", row["input_ids"])
    for mask in masks:
        labels = [label if flag else -100 for label, flag in zip(labels, mask, strict=True)]
    return row | {"labels": labels}
