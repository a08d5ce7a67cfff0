"""Decisions about all documents: duplicates are those that a set finds, and weights are reached within one document."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.pipeline.inputs.blocks import FileLines
from packtrain.pipeline.pack import copies as module
from packtrain.pipeline.pack.copies import later_copies, repeated, set_copies
from packtrain.pipeline.pack.table import HELD_OUT, Documents, Origins, Table, scratch_documents
from packtrain.pipeline.store.open import StoredFile
from packtrain.schemas.config.config import RunConfig
from packtrain.stages.select.copies import passes_of

TOP = 2**64 - 1
halves = st.sampled_from([0, 1, 2**63 - 1, 2**63, TOP - 1, TOP])


def documents_of(count: int) -> Documents:
    return scratch_documents(count, Path())


@given(st.lists(st.tuples(halves, halves, st.booleans()), max_size=40), st.sampled_from([1, 2, 7, 1 << 21]))
def test_duplicates_as_a_set_finds_them(rows: list[tuple[int, int, bool]], at_once: int) -> None:
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AT_ONCE", at_once)
        assert sorted(later_copies(documents).tolist()) == expected


def test_of_very_many_documents_a_share_of_the_digests_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    documents = documents_of(40_000)
    for column in (documents.first_digest, documents.second_digest):
        column[:] = rng.integers(0, 2**64, 40_000, dtype=np.uint64)
        column[30_000:] = column[:10_000]
    assert repeated(documents) == (10_000, 1)
    monkeypatch.setattr(module, "AT_ONCE", 5_000)
    count, share = repeated(documents)
    assert share == 8
    assert 9_000 < count < 11_000


def table_of(sources: list[list[int]], held_out: set[int]) -> Table:
    """Documents with so many tokens, by source; of the first source, some are held out."""
    tokens = np.array([size for source in sources for size in source], np.int32)
    documents = documents_of(len(tokens))
    documents.kept[:] = documents.length[:] = tokens
    documents.copies[:] = 1
    documents.flags[sorted(held_out)] |= HELD_OUT
    sizes = [len(source) for source in sources]
    parts = [StoredFile(f"part-{i}", 0, "0" * 64) for i in range(len(sizes))]
    owners = list(range(len(sizes)))
    origins = Origins("", parts, owners, [FileLines(("file",), (0,))] * len(sizes), sizes, [1] * len(sizes))
    return Table(documents, (), origins, origins.bounds(len(sizes)), origins.starts, owners)


def config_of(sources: list[dict[str, float]], seed: int = 42) -> RunConfig:
    named = [{"name": f"s{i}", "format": "text", "path": "unused"} | keys for i, keys in enumerate(sources)]
    return RunConfig.model_validate({"out": "o", "tokenizer": {"path": "t"}, "sources": named, "seed": seed})


sizes = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(sizes, sizes, st.floats(0.1, 10), st.integers(0, 2**31), st.sets(st.integers(0, 3), max_size=2))
def test_weights_are_reached_within_one_document(
    left: list[int], right: list[int], weight: float, seed: int, held_out: set[int]
) -> None:
    table = table_of([left, right], {one for one in held_out if one < len(left)})
    config = config_of([{"weight": weight}, {"weight": 1.0}], seed)
    set_copies(table, config)
    copies, mixed = table.documents.copies.astype(int), ~table.documents.has(HELD_OUT)
    assert (copies[~mixed] == 1).all()
    tokens = np.where(mixed, table.documents.length, 0)
    available = [int(tokens[: len(left)].sum()), int(tokens[len(left) :].sum())]
    passes = passes_of(available, [weight, 1.0], [None, None])
    for here, often, of_source, longest in zip(
        (slice(0, len(left)), slice(len(left), None)), passes, available, (max(left), max(right)), strict=True
    ):
        assert set(copies[here][mixed[here]].tolist()) <= {int(often), int(often) + 1}
        assert abs(int((tokens * copies)[here].sum()) - often * of_source) <= Fraction(longest, 2)


def half_of(seed: int, weights: tuple[float, float] = (1.0, 2.0)) -> NDArray[np.int64]:
    """Copies of 1,000 equal documents, of which half get a further one."""
    table = table_of([[7] * 1000, [7] * 3000], set())
    set_copies(table, config_of([{"weight": weights[0]}, {"weight": weights[1]}], seed))
    return table.documents.copies[:1000].astype(np.int64) - 1


def test_the_choice_knows_only_seed_and_place() -> None:
    """Another seed chooses others; a growing share adds; neither the first ones nor neighbours are preferred."""
    half = half_of(42)
    assert half.sum() == 500
    other = half_of(43)
    assert other.sum() == 500
    assert 150 < (half * other).sum() < 350
    more = half_of(42, (1.0, 1.75))
    assert more.sum() > 700
    assert (more >= half).all()
    assert 200 < half[:500].sum() < 300
    assert 150 < (half[1:] * half[:-1]).sum() < 350
