"""The ledger and the rows that follow from what an independent packer does."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests import kit
from tests.oracle.packer import IGNORED, PAD, Example, Packer, Piece, Row, Span, Written

UNKNOWN = ("template_dropped", "weight_trained", "columns_not_read", "keys_not_read")
"""What this account does not count."""


# Rows


def expected_row(pieces: Sequence[Piece], packer: Packer) -> Row:
    """A packed row, with the ids of its examples, and without weights."""
    row: Row = {name: [] for name in ("input_ids", "labels", "position_ids", "seq_lengths", "doc_starts", "ids")}
    own = [piece.end - piece.start for piece in pieces]
    for place, (piece, size) in enumerate(zip(pieces, own, strict=True)):
        padding = packer.padded(piece) - size
        if place == len(pieces) - 1:
            padding += -(len(row["input_ids"]) + size + padding) % packer.row
        row["input_ids"] += [*piece.example.ids[piece.start : piece.end], *[PAD] * padding]
        row["labels"] += [*piece.labels(), *[IGNORED] * padding]
        row["position_ids"] += range(size + padding)
        row["seq_lengths"].append(size + padding)
        row["doc_starts"].append(piece.start)
        row["ids"].append(piece.example.id)
    if packer.pack.get("parallel"):
        row["seq_lengths_unpadded"] = own
    return row


def actual_rows(packed: kit.Packed, split: str) -> list[Row]:
    """The rows of a split in the same form; weights stay where they are."""
    names = {entry["doc_id"]: entry["id"] for entry in packed.documents()}
    rows = packed.rows(split)
    for row in rows:
        row["ids"] = [names[one] for one in row.pop("doc_ids")]
    return rows


def pieces_of(row: Row) -> Iterator[tuple[str, int, list[int], list[int], list[float] | None]]:
    """(example, first token, ids, labels, weights) of every piece of a row, with its padding."""
    begin = 0
    for name, start, size in zip(row["ids"], row["doc_starts"], row["seq_lengths"], strict=True):
        here = slice(begin, begin + size)
        weights = row["loss_weights"][here] if "loss_weights" in row else None
        yield name, start, row["input_ids"][here], row["labels"][here], weights
        begin += size


def look_up(packed: kit.Packed, examples: Sequence[Example], limits: dict[str, Span]) -> dict[str, Written]:
    """What the output alone says of each example.

    Args:
        limits: what the configuration leaves of each example: all behind it is padding.
    """
    by_id = {example.id: example for example in examples}
    splits: dict[str, str] = {}
    spans: dict[str, Counter[Span]] = {}
    for split in packed.splits:
        for row in actual_rows(packed, split):
            for name, start, ids, _, _ in pieces_of(row):
                rest = by_id[name].ids[start : limits[name][1]]
                size = next(size for size in range(len(ids), 0, -1) if ids[:size] == rest[:size])
                assert splits.setdefault(name, split) == split, "an example is in one split"
                spans.setdefault(name, Counter())[start, start + size] += 1
    return {name: Written(splits[name], min(spans[name].values()), tuple(sorted(spans[name]))) for name in spans}


# The ledger


@dataclass(frozen=True)
class Lines:
    """The lines of a source's file: each with None if it is used, or with what it counts as."""

    lines: list[tuple[bytes, tuple[str, str] | None]]
    skipped: Counter[str]
    """Solutions that no example is made of."""


def expected_ledger(source: str, lines: Lines, packer: Packer, labels: dict[str, tuple[int, int]]) -> Row:
    """The account of one source.

    Args:
        labels: (trained, lost at heads) of each packed example, over all its copies.
    """
    out: Row = defaultdict(int)
    kinds = Counter(kind for _, kind in lines.lines if kind is not None)
    out["rows_read"] = len(lines.lines)
    out["rows_used"] = len(lines.lines) - kinds.total()
    for name in ("rejected", "filtered"):
        out[f"rows_{name}"] = {reason: count for (kind, reason), count in kinds.items() if kind == name}
    out["rows_blank"] = kinds["blank", ""]
    out["examples_skipped"] = +lines.skipped
    nested: dict[str, Counter[str]] = {name: Counter() for name in (
        "examples_packed", "examples_dropped", "tokens_created", "tokens_truncated", "tokens_dropped",
        "supervised_dropped",
    )}  # fmt: skip
    said = set()
    for example in packer.examples:
        if example.source == source:
            _add(out, nested, example, packer, labels)
        if example.id in packer.pieces:
            out["examples_equal"] += example.source == source and example.says in said
            said.add(example.says)
    out["labels_masked"] = out["tokens_packed"] - out["labels_trained"] - out["labels_first_token"]
    out |= {name: +counts for name, counts in nested.items()}
    return out


def _add(
    out: Row, nested: dict[str, Any], example: Example, packer: Packer, labels: dict[str, tuple[int, int]]
) -> None:
    asked, created = example.asked(), nested["tokens_created"]
    out["examples_made"] += 1
    out["tokens_encoded"] += len(example.ids) - example.added.total()
    out["supervised_encoded"] += sum(asked)
    out["straddles"] += example.straddles
    created += example.added
    if example.id not in packer.pieces:
        reason = packer.dropped[example.id]
        nested["examples_dropped"][reason] += 1
        nested["tokens_dropped"][reason] += len(asked)
        nested["supervised_dropped"][reason] += sum(asked)
        return
    pieces, written = packer.pieces[example.id], packer.written[example.id]
    copies, (low, high) = written.copies, packer.limited(example)
    fresh = [place for piece in pieces for place in range(piece.fresh, piece.end)]
    left_out = {*range(low, high)} - {*fresh}
    assert len(fresh) == len({*fresh})
    assert packer.divided(example) or not left_out
    nested["examples_packed"][written.split] += 1
    out["examples_repeated"] += copies - 1
    out["examples_split"] += packer.divided(example)
    out["examples_truncated"] += high - low < len(asked)
    out["turns_trained"] += len(example.trained_turns())
    created["overlap"] += copies * sum(piece.fresh - piece.start for piece in pieces)
    created["repeats"] += (copies - 1) * len(fresh)
    out["supervised_repeated"] += (copies - 1) * sum(asked[place] for place in fresh)
    nested["tokens_dropped"]["untrained_piece"] += len(left_out)
    nested["supervised_dropped"]["untrained_piece"] += sum(asked[place] for place in left_out)
    out["supervised_truncated"] += sum(asked) - sum(asked[low:high])
    out["tokens_packed"] += copies * sum(piece.end - piece.start for piece in pieces)
    _truncated(nested["tokens_truncated"], example, packer)
    trained, heads = labels[example.id]
    out["labels_trained"] += trained
    out["labels_first_token"] += heads
    out["examples_without_labels"] += trained == 0


def _truncated(out: Counter[str], example: Example, packer: Packer) -> None:
    low, high = packer.limited(example)
    out["max_length"] += len(example.ids) - (high - low)


def cuts(example: Example, pieces: Sequence[Piece]) -> int:
    """Cuts with a trained token of one turn, or of one completion, on both sides."""
    asked = example.asked()
    places = {piece.fresh for piece in pieces} | {piece.end for piece in pieces}
    turns = example.trained_turns() if example.talks else example.turns
    return sum(asked[place - 1] and asked[place] for first, last in turns for place in places if first < place < last)
