"""Sections to plan: one per document, several if it is split, and all of them again for every copy."""

import numpy as np
from packtrain.stages.select.sections import Sections, lay_open


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def listed(sections: Sections) -> list[tuple[int, int, int, int]]:
    """(document, start, length, repeated)."""
    repeated = sections.repeated if sections.repeated is not None else np.zeros_like(sections.lengths)
    columns = (sections.documents, sections.starts, sections.lengths, repeated)
    return list(zip(*(column.tolist() for column in columns), strict=True))


#                 0  1  2  3  4
LOW = ints(0, 2, 0, 0, 0)
HIGH = ints(5, 9, 20, 0, 30)
SPLIT = Sections(np.array([2, 2, 2, 4]), ints(0, 6, 12, 10), ints(7, 7, 8, 8), ints(0, 1, 1, 0))
"""Document 2 in three pieces; of document 4 only one has something to train."""


def test_one_stretch_a_document() -> None:
    everything = np.ones(5, np.bool_)
    found = lay_open(everything, LOW, HIGH, None, ints(1, 1, 1, 1, 0))
    assert listed(found) == [(0, 0, 5, 0), (1, 2, 7, 0), (2, 0, 20, 0)]
    assert found.repeated is None
    assert found.tokens(5).tolist() == [5, 7, 20, 0, 0]
    assert found.overlap(5).tolist() == [0] * 5


def test_split_and_repeated() -> None:
    some = np.array([True, True, True, True, False])
    found = lay_open(some, LOW, HIGH, SPLIT, ints(2, 1, 2, 1, 1))
    two = [(2, 0, 7, 0), (2, 0, 7, 0), (2, 6, 7, 1), (2, 6, 7, 1), (2, 12, 8, 1), (2, 12, 8, 1)]
    assert listed(found) == [(0, 0, 5, 0), (0, 0, 5, 0), (1, 2, 7, 0), *two]
    once = lay_open(np.ones(5, np.bool_), LOW, HIGH, SPLIT, ints(1, 1, 1, 1, 1))
    assert listed(once)[2:] == [(2, 0, 7, 0), (2, 6, 7, 1), (2, 12, 8, 1), (4, 10, 8, 0)]
    assert once.tokens(5).tolist() == [5, 7, 20, 0, 8]
    assert once.overlap(5).tolist() == [0, 0, 2, 0, 0]


def test_nothing() -> None:
    found = lay_open(np.zeros(5, np.bool_), LOW, HIGH, SPLIT, ints(1, 1, 1, 1, 1))
    assert len(found) == 0
    assert found.tokens(5).tolist() == [0] * 5
