"""Rows of known sizes are cut into spans as a loop over rows cuts them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs.containers.spans import cut_sizes

Span = tuple[int, int, int, bool]


def row_by_row(sizes: list[int], size: int, longest: int) -> list[Span]:
    out: list[Span] = []
    first = held = 0
    for row, bytes in enumerate(sizes):
        if row > first and (bytes > longest or held + bytes > size):
            out.append((first, row, held, False))
            first, held = row, 0
        if bytes > longest:
            out.append((row, row + 1, bytes, True))
            first = row + 1
        else:
            held += bytes
    return [*out, (first, len(sizes), held, False)] if len(sizes) > first else out


def spans(chunks: list[list[int]], size: int, longest: int) -> list[Span]:
    found = cut_sizes([np.array(chunk, np.int64) for chunk in chunks], size, longest)
    return [(one.first, one.last, one.bytes, one.too_long) for one in found]


def test_spans_of_a_few_rows() -> None:
    assert spans([[3, 3, 3], [9, 1, 30, 2]], 7, 20) == [
        (0, 2, 6, False),
        (2, 3, 3, False),
        (3, 4, 9, False),
        (4, 5, 1, False),
        (5, 6, 30, True),
        (6, 7, 2, False),
    ]


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=4), st.integers(1, 20), st.integers(1, 40))
def test_it_cuts_as_a_loop_over_rows_does(chunks: list[list[int]], size: int, longest: int) -> None:
    assert spans(chunks, size, longest) == row_by_row([one for chunk in chunks for one in chunk], size, longest)
