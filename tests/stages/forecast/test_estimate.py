"""What other lengths would give, against the planner itself, label by label."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.config.config import RunConfig
from packtrain.stages.forecast.estimate import estimate
from packtrain.stages.forecast.length_stats import LengthStats
from packtrain.stages.pack.plan_rows import plan_rows

Documents = list[list[bool]]
"""For each token of each document, whether the mask selects it."""


def configured(*, keep_untrained: bool = False, pack: Any = None, **truncate: Any) -> RunConfig:
    source = {"name": "s", "format": "text", "path": "unused"}
    return RunConfig.model_validate(
        {
            "out": "out",
            "tokenizer": {"path": "unused"},
            "sources": [source],
            "keep_untrained": keep_untrained,
            "truncate": truncate,
            "pack": pack or {},
        }
    )


def stats_of(documents: Documents) -> LengthStats:
    owners, begins, ends = [], [], []
    for number, asked in enumerate(documents):
        marks = np.flatnonzero(np.diff([0, *map(int, asked), 0]))
        owners += [number] * (len(marks) // 2)
        begins += marks[::2].tolist()
        ends += marks[1::2].tolist()
    lengths, *spans = (np.array(one, np.int32) for one in (list(map(len, documents)), owners, begins, ends))
    return LengthStats(lengths, spans[0], spans[1], spans[2])


def labels_of(asked: list[bool], begin: int, end: int) -> int:
    """Labels of a piece: its first token has none."""
    return sum(asked[begin + 1 : end])


Stretch = tuple[int, int, int]
"""Document, first token, one past the last."""


def stretches(documents: Documents, cuts: bool, limit: int, config: RunConfig) -> list[Stretch]:
    """What is packed, before the strategy cuts it."""
    out = []
    for number, one in enumerate(documents):
        if not one or (not config.keep_untrained and not labels_of(one, 0, len(one))):
            continue
        if cuts or len(one) <= limit:
            found = [(0, len(one))]
        elif config.truncate.overlong == "drop":
            found = []
        else:
            found = [(len(one) - limit, len(one))] if config.truncate.keep == "end" else [(0, limit)]
        out += [(number, a, b) for a, b in found if config.keep_untrained or labels_of(one, a, b)]
    return out


def brute(
    documents: Documents, strategy: str, limit: int, config: RunConfig, row_length: int | None = None
) -> dict[str, int]:
    """The same figures from a real plan, piece by piece."""
    cuts, wide = config.truncate.overlong == "split" or strategy == "bfd_split", config.pack.align
    stays = stretches(documents, cuts, limit, config)
    pieces = list[Stretch]()
    if cuts and row_length is not None:  # cut before rows are planned
        stays = [
            (number, first, min(first + limit, end))
            for number, begin, end in stays
            for first in range(begin, end, limit)
        ]
    plan = plan_rows(
        np.array([end - begin for _, begin, end in stays], dtype=np.int32),
        limit,
        "bfd_split" if cuts and row_length is None else "tight" if strategy == "tight" else "bfd",
        row_length=row_length,
        align=wide,
        max_docs=config.pack.max_docs,
    )
    for order, start, length in zip(plan.order, plan.starts, plan.lengths, strict=True):
        begin = stays[order][1] + int(start)
        pieces.append((stays[order][0], begin, begin + int(length)))
    packed = {number for number, _, _ in pieces}
    several = {number for number in packed if [one[0] for one in pieces].count(number) > 1}
    long = {number for number in packed if len(documents[number]) > limit}
    tokens = sum(end - begin for _, begin, end in pieces)
    labels = sum(labels_of(documents[number], begin, end) for number, begin, end in pieces)
    return {
        "documents": len(packed),
        "documents_cut": len(several) if cuts else len(long),
        "documents_lost": sum(bool(one) for one in documents) - len(packed),
        "rows": plan.rows,
        "bound": plan.certificate.bound,
        "tokens": tokens,
        "tokens_lost": sum(map(len, documents)) - tokens,
        "labels": labels,
        "labels_lost": sum(labels_of(one, 0, len(one)) for one in documents) - labels,
    }


configs = st.builds(
    configured,
    keep=st.sampled_from(["start", "end"]),
    overlong=st.sampled_from(["truncate", "drop", "split"]),
    keep_untrained=st.booleans(),
    pack=st.fixed_dictionaries({"max_docs": st.none() | st.integers(1, 3), "align": st.sampled_from([1, 2, 4])}),
    max_length=st.just(32),
)


@given(st.lists(st.lists(st.booleans(), max_size=40), max_size=12), st.sampled_from([4, 8, 16, 32]), configs)
def test_it_counts_what_the_planner_makes(documents: Documents, limit: int, config: RunConfig) -> None:
    stats = stats_of(documents)
    for strategy in ("bfd", "bfd_split"):
        found, expected = estimate(stats, config, limit, strategy), brute(documents, strategy, limit, config)
        assert {key: getattr(found, key) for key in expected} == expected, strategy
        assert found.bound <= found.rows


@given(
    st.lists(st.lists(st.booleans(), max_size=40), max_size=12),
    st.sampled_from([3, 4, 7, 16, 32]),
    st.sampled_from([32, 48, 64]),
    configs,
)
def test_it_counts_rows_that_are_longer(documents: Documents, limit: int, row_length: int, config: RunConfig) -> None:
    stats = stats_of(documents)
    for strategy in ("bfd", "tight"):
        found = estimate(stats, config, limit, strategy, row_length)
        expected = brute(documents, strategy, limit, config, row_length)
        assert {key: getattr(found, key) for key in expected} == expected, strategy
        assert (found.max_length, found.row_length) == (limit, row_length)
        assert found.fill == (found.tokens / (found.rows * row_length) if found.rows else 0)


def test_figures_that_can_be_checked_by_eye() -> None:
    # Lengths 5, 3 and 2; a prompt of one token each.
    stats = stats_of([[False] + [True] * 4, [False] + [True] * 2, [False, True]])
    bfd, split, wrapped = (estimate(stats, configured(), 4, name) for name in ("bfd", "bfd_split", "wrapped"))
    assert (stats.tokens, stats.labels) == (10, 7)
    assert (bfd.rows, bfd.tokens_lost, bfd.documents_cut, bfd.labels_lost) == (3, 1, 1, 1)  # 4 | 3 | 2
    assert bfd.fill == 9 / 12
    assert (split.rows, split.tokens_lost, split.labels_lost) == (3, 0, 1)  # 4 | 3 + 1 | 2
    # About the same: 4 | 1 + 3 | 2
    assert (wrapped.rows, wrapped.documents_cut, wrapped.labels_lost) == (3, 1, 1)
    # 5, 3 and 2 tokens take 8, 4 and 4 of two rows of 8.
    aligned = estimate(stats, configured(pack={"align": 4}), 8, "bfd")
    assert (aligned.rows, aligned.bound, aligned.tokens, aligned.fill) == (2, 2, 10, 10 / 16)


@pytest.mark.parametrize(("align", "max_docs", "overlong"), [(1, None, "drop"), (4, None, "split"), (1, 3, "split")])
def test_tight_has_the_rows_of_its_plan(align: int, max_docs: int | None, overlong: str) -> None:
    random = np.random.default_rng(align)
    lengths = [*random.integers(20, 90, 400).tolist(), 300, 600]
    stats = stats_of([[False] + [True] * (length - 1) for length in lengths])
    config = configured(pack={"align": align, "max_docs": max_docs}, overlong=overlong)
    found, plain = (estimate(stats, config, 128, strategy) for strategy in ("tight", "bfd"))
    pieces = [*lengths[:-2], *([128] * 6 + [44, 88] if overlong == "split" else [])]
    certificate = plan_rows(np.array(pieces), 128, "tight", align=align, max_docs=max_docs).certificate
    assert (found.rows, found.bound) == (certificate.rows, certificate.bound)
    assert plain.bound <= found.bound <= found.rows <= plain.rows
    assert (found.tokens, found.labels) == (plain.tokens, plain.labels)


@pytest.mark.parametrize("documents", [[], [[], []]])
def test_nothing_at_all(documents: Documents) -> None:
    for strategy in ("bfd", "bfd_split", "wrapped", "none", "tight"):
        found = estimate(stats_of(documents), configured(), 256, strategy)
        assert (found.rows, found.tokens, found.fill) == (0, 0, 0.0)
