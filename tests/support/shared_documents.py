"""The documents of packed rows along their paths, whichever of them share tokens."""

from collections import Counter
from typing import NamedTuple

from tests import kit

NEVER_SHARED = -100


class Whole(NamedTuple):
    """A document, whichever way it was packed."""

    doc_id: int
    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    position_ids: tuple[int, ...]
    weights: tuple[float, ...]


def documents_of(packed: kit.Packed, split: str = "train") -> Counter[Whole]:
    """The documents of a dataset, along their paths, with the number of copies."""
    found: Counter[Whole] = Counter()
    for row in packed.rows(split):
        branched = "branch_parents" in row
        prefix = "branch_" if branched else ""
        lengths = row["branch_lengths" if branched else "seq_lengths"]
        parents = row["branch_parents"] if branched else [0] * len(lengths)
        weights = row.get("loss_weights")
        columns = [row[f"{prefix}{name}"] for name in ("input_ids", "labels", "position_ids")]
        paths: list[list[int]] = []
        begin = 0
        for number, (length, parent) in enumerate(zip(lengths, parents, strict=True)):
            own = list(range(begin, begin + length))
            before = columns[2][begin]
            assert (before > 0) == (parent > 0)
            path = (paths[number - parent][:before] if parent else []) + own
            assert columns[1][begin] == NEVER_SHARED
            ids, labels, positions = (tuple(column[place] for place in path) for column in columns)
            own_labels = (NEVER_SHARED,) * before + labels[before:]
            scales = tuple(0.0 if place < begin else weights[place] for place in path) if weights else ()
            found[Whole(row["doc_ids"][number], ids, own_labels, positions, scales)] += 1
            paths.append(path)
            begin += length
    return found
