"""Duplicates are those that a set finds."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.pack.copies import later_copies
from packtrain.pipeline.pack.table import Documents, scratch_documents

TOP = 2**64 - 1
halves = st.sampled_from([0, 1, 2**63 - 1, 2**63, TOP - 1, TOP])


def documents_of(count: int) -> Documents:
    return scratch_documents(count, Path())


@given(st.lists(st.tuples(halves, halves, st.booleans()), max_size=40))
def test_duplicates_as_a_set_finds_them(rows: list[tuple[int, int, bool]]) -> None:
    """(first half, second half, still in) of each document."""
    documents = documents_of(len(rows))
    seen: set[tuple[int, int]] = set()
    expected = []
    for index, (first, second, stays) in enumerate(rows):
        documents.first_digest[index], documents.second_digest[index] = first, second
        documents.outcome[index] = not stays
        if stays and (first, second) in seen:
            expected.append(index)
        if stays:
            seen.add((first, second))
    assert later_copies(documents).tolist() == expected
