"""What the limits keep of preference pairs, against lists that lose one token at a time."""

from typing import Literal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.schemas.layout import Alignment
from packtrain.stages.select.truncate import Limits, PairLengths, cut_pairs

from tests.support.examples import examples

Keep = Literal["start", "end"]

lengths = st.integers(0, 60)
triples = st.lists(st.tuples(lengths, lengths, lengths), min_size=1, max_size=20)
keeps: st.SearchStrategy[Keep] = st.sampled_from(["start", "end"])


def stored(prompt: int, chosen: int, rejected: int, *, shared: bool) -> int:
    """Tokens of both sides in their row."""
    return prompt + chosen + rejected + (min(prompt, 1) if shared else prompt)


def shortened(triple: tuple[int, int, int], room: int, keep: Keep, *, shared: bool) -> tuple[int, int, int]:
    """The tokens kept of each part: one by one goes, of the longer completion or of both, until the rest fits."""
    prompt, chosen, rejected = triple
    while keep == "end" and prompt and stored(prompt, chosen, rejected, shared=shared) > room:
        prompt -= 1
    while stored(prompt, chosen, rejected, shared=shared) > room and (chosen or rejected):
        longest = max(chosen, rejected)
        chosen -= chosen == longest
        rejected -= rejected == longest
    return prompt, chosen, rejected


def as_lengths(parts: list[tuple[int, int, int]]) -> PairLengths:
    columns: NDArray[np.int32] = np.array(parts, np.int32).T
    return PairLengths(*columns)


@given(triples=triples, room=st.integers(2, 90), keep=keeps, shared=st.booleans())
@examples(400)
def test_both_sides_share_a_limit(triples: list[tuple[int, int, int]], room: int, keep: Keep, *, shared: bool) -> None:
    limits = Limits(room, keep=keep, both=True, share_prompt=shared)
    cut = cut_pairs(as_lengths(triples), limits)
    kept = list(zip(*(part.tolist() for part in cut.kept.parts), strict=True))
    assert kept == [shortened(triple, room, keep, shared=shared) for triple in triples]
    begins = list(zip(*(part.tolist() for part in cut.begins.parts), strict=True))
    for triple, kept_parts, lost in zip(triples, kept, begins, strict=True):
        prompt, chosen, rejected = kept_parts
        if chosen and rejected:
            assert stored(*kept_parts, shared=shared) <= room
        if chosen < triple[1] and rejected < triple[2]:
            assert chosen == rejected, "one cap for both, which does not tell them apart"
        ends = tuple(whole - part for whole, part in zip(triple, kept_parts, strict=True))
        assert lost == (ends if keep == "end" else (0, 0, 0))
        if keep == "end" and (lost[1] or lost[2]):
            assert prompt == 0, "what is kept of a side is one stretch"


@given(triples=triples, units=st.integers(2, 20), align=st.sampled_from([1, 2, 4, 8]), keep=keeps, shared=st.booleans())
@examples(200)
def test_both_sides_fit_a_row_with_their_padding(
    triples: list[tuple[int, int, int]], units: int, align: int, keep: Keep, *, shared: bool
) -> None:
    row_length = units * align
    limits = Limits(row_length - (align - 1), keep=keep, both=True, share_prompt=shared)
    kept = cut_pairs(as_lengths(triples), limits).kept
    has_room = (kept.chosen > 0) & (kept.rejected > 0)  # else the pair is left out
    sides = np.stack([kept.prompt + kept.chosen, limits.repeated(kept.prompt) + kept.rejected])
    padded = Alignment(align, align).padded(sides.ravel(), np.arange(sides.size + 1)).reshape(sides.shape)
    assert (padded.sum(axis=0)[has_room] <= row_length).all()


@given(triples=triples, room=st.integers(2, 90), keep=keeps)
@examples(100)
def test_each_side_has_the_limit_where_pairs_are_not_packed(
    triples: list[tuple[int, int, int]], room: int, keep: Keep
) -> None:
    kept = cut_pairs(as_lengths(triples), Limits(room, keep=keep)).kept
    for triple, prompt, chosen, rejected in zip(triples, *(part.tolist() for part in kept.parts), strict=True):
        for whole, part in zip(triple[1:], (chosen, rejected), strict=True):
            rest = max(0, room - triple[0]) if keep == "start" else room
            assert part == min(whole, rest)
        if keep == "end":
            assert prompt == min(triple[0], room - max(chosen, rejected))


@given(triples=triples, room=st.integers(2, 90), shared=st.booleans())
@examples(60)
def test_nothing_is_cut_where_long_pairs_are_dropped(
    triples: list[tuple[int, int, int]], room: int, *, shared: bool
) -> None:
    whole = as_lengths(triples)
    limits = Limits(room, overlong="drop", both=True, share_prompt=shared)
    cut = cut_pairs(whole, limits)
    assert all((kept == part).all() for kept, part in zip(cut.kept.parts, whole.parts, strict=True))
    assert whole.limited(limits).tolist() == [stored(*triple, shared=shared) for triple in triples]
