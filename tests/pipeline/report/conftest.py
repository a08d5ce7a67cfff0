"""A whole report made by hand, and a browser to look at pages."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from packtrain.pipeline.report.collect.lengths.choice import point_of
from packtrain.schemas.report import (
    FORMAT,
    Advice,
    BatchRecipe,
    BatchSize,
    Choice,
    Flow,
    Histogram,
    Input,
    LedgerFlow,
    Link,
    Packing,
    RankBalance,
    Reject,
    Report,
    ReportShape,
    Saving,
    ShownDocument,
    ShownPiece,
    ShownRow,
    SourceShare,
    SplitPacking,
    Stage,
    Training,
    Trust,
)
from packtrain.stages.forecast.sweep import LengthStats, SweepOptions, sweep

from tests.support.browser import browser as browser
from tests.support.browser import look as look

SHAPE = ReportShape("7 billion parameters", 6.7e9, 32, 4096)


def histogram(values: "np.ndarray[Any, Any]", edges: "np.ndarray[Any, Any]") -> Histogram:
    counts, _ = np.histogram(values, edges)
    names = {"min": 0, "p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95, "p99": 99, "max": 100}
    quantiles = {name: float(np.percentile(values, at)) for name, at in names.items()}
    return Histogram(edges.tolist(), counts.tolist(), len(values), float(values.sum()), quantiles)


def _lengths(seed: int, middle: float, spread: float, number: int) -> "np.ndarray[Any, Any]":
    drawn = np.random.default_rng(seed).lognormal(np.log(middle), spread, number)
    return np.clip(drawn, 4, 120_000).astype(np.int64)


EDGES = np.concatenate([[0], np.unique(np.rint(np.geomspace(1, 131_073, 60)))])


def a_choice() -> Choice:
    lengths = _lengths(1, 900, 1.1, 4000).astype(np.int32)
    owners = np.arange(len(lengths), dtype=np.int32)
    stats = LengthStats(lengths, owners, (lengths * 6 // 10).astype(np.int32), lengths)
    points = []
    for one in sweep(stats, options=SweepOptions(batch=8)):
        points.append(point_of(one, SHAPE))
    sentence = (
        "max_length 8,192 would keep 99.1 % of the trained tokens; the next step up costs 9 % more attention for 0.7 %."
    )
    return Choice(
        sentence=sentence,
        documents=4000,
        documents_in_all=4000,
        lengths=histogram(lengths, EDGES),
        batch=8,
        shape=SHAPE,
        points=points,
        strategy="bfd",
        max_length=4096,
        overlong="truncate",
        advice=Advice(8192, "bfd", sentence, ["At 4,096, 3.4 % of the trained tokens are cut off."]),
    )


def a_fate(source: str, factor: int) -> LedgerFlow:
    def link(start: str, end: str, count: int, kind: str) -> Link:
        return Link(start, end, count * factor, kind)

    return LedgerFlow(
        source,
        rows=[
            link(source, "used rows", 900, "kept"),
            link(source, "rejected: invalid_json", 7, "lost"),
            link(source, "filtered: where", 93, "lost"),
        ],
        examples=[
            link("made examples", "packed: train", 850, "kept"),
            link("made examples", "packed: holdout", 40, "kept"),
            link("made examples", "dropped: duplicate", 10, "lost"),
        ],
        tokens=[
            link(source, "encoded tokens", 1_180_000, "kept"),
            link("created: end_of_sequence", "encoded tokens", 20_000, "created"),
            link("encoded tokens", "packed tokens", 1_100_000, "kept"),
            link("encoded tokens", "truncated: max_length", 75_000, "lost"),
            link("encoded tokens", "dropped: duplicate", 25_000, "lost"),
            link("packed tokens", "trained tokens", 420_000, "trained"),
            link("packed tokens", "first tokens of pieces", 1_000, "untrained"),
            link("packed tokens", "masked tokens", 679_000, "untrained"),
        ],
    )


def a_share(source: str, seed: int) -> SourceShare:
    prompts, answers = _lengths(seed, 500, 0.9, 900), _lengths(seed + 1, 260, 0.8, 900)
    turns = np.random.default_rng(seed).integers(1, 7, 900)
    return SourceShare(
        source=source,
        examples=900,
        tokens=1_100_000 // seed,
        labels=420_000 // seed,
        turns=int(turns.sum()),
        turns_without_end=3,
        turns_cut=12,
        straddles=4,
        boundaries=5_400,
        without_labels=0,
        untrained=2,
        lengths=histogram(prompts + answers, EDGES),
        prompts=histogram(prompts, EDGES),
        completions=histogram(answers, EDGES),
        turns_each=histogram(turns, np.arange(1, 8)),
    )


def a_row(row: int) -> ShownRow:
    documents = [
        ShownDocument(
            id=f"chat/part-{row}.jsonl:{at}",
            source="chat" if at % 2 else "code",
            doc_id=row * 10 + at,
            start=0 if at < 3 else 2048,
            tokens=300 * at,
            trained=100 * at,
            pieces=[
                ShownPiece("<|user|>\nHow long is a day?\n<|assistant|>\n", False, 200 * at),
                ShownPiece("\tA day is 24 hours <long>.\n", True, 100 * at),
            ],
            shortened=at == 3,
        )
        for at in range(1, 4)
    ]
    return ShownRow("train", row, 1800, 2048, documents)


def a_report() -> Report:
    fills = np.clip(1 - np.random.default_rng(3).exponential(0.02, 500), 0.2, 1)
    heaps = np.random.default_rng(4).integers(1, 14, 500)

    def split(name: str, rows: int) -> SplitPacking:
        return SplitPacking(
            split=name,
            rows=rows,
            bound=rows - 1,
            gap=1 / (rows - 1),
            fill=0.981,
            tokens=rows * 4018,
            labels=rows * 1500,
            pieces=rows * 6,
            shards=2,
            windows=1,
            fills=histogram(fills, np.linspace(0, 1, 51)),
            documents=histogram(heaps, np.arange(1, 16)),
        )

    return Report(
        format=FORMAT,
        kind="run",
        name="chat-and-code",
        made="2026-02-03T04:05:06Z",
        packtrain="0.1.0",
        sample=None,
        choice=a_choice(),
        flow=Flow(
            sentence="1,800 rows of 2,000 were used; 6.3 % of the encoded tokens were truncated.",
            fates=[a_fate("all", 3), a_fate("chat", 2), a_fate("code", 1)],
            reasons={"invalid_json": "The line is no JSON.", "duplicate": "Its prompt was there before."},
            rejects=[
                Reject(
                    "chat", "part-0.jsonl", 17, "invalid_json", "Expecting value: column 4", "/data/a b/part-0.jsonl"
                ),
                Reject("code", "rows.parquet", None, "invalid_json", '{"text": <b>bold</b>', None),
            ],
            rejected={"invalid_json": 14, "wrong_type": 2},
            rejects_file="rejects.jsonl",
        ),
        training=Training(
            sentence="38 % of the packed tokens are trained.",
            sources=[a_share("chat", 1), a_share("code", 2)],
            rows=[a_row(3), a_row(40)],
        ),
        packing=Packing(
            sentence="Rows are 98.1 % full, 0.2 % above the bound.",
            max_length=4096,
            strategy="bfd",
            splits=[split("train", 500), split("holdout", 20)],
            world_size=8,
            balance=[RankBalance(8, 1, 1.21, 1.06, 1.3), RankBalance(8, 8, 1.09, 1.01, 1.04)],
            order_before=-0.93,
            order_after=0.004,
            savings=[
                Saving("padded", 5_000_000, 270, 2.2e17, 550.0),
                Saving("padding_free", 2_100_000, 270, 9.2e16, 230.0),
                Saving("bfd", 2_150_000, 110, 9.3e16, 232.0),
            ],
            shape=SHAPE,
            device_flops=4e14,
        ),
        batch=BatchSize(
            sentence="3 packed rows hold as many tokens as 16 unpacked examples.",
            tokens_a_row=4018.0,
            labels_a_row=1500.0,
            examples_a_row=5.9,
            tokens_an_example=681.0,
            recipes=[
                BatchRecipe(size, size * 681.0, size * 254.0, max(1, size // 6), size // 6 * 5.9, 3000 // size)
                for size in (8, 16, 32, 64, 128, 256, 512, 1024)
            ],
        ),
        trust=Trust(
            sentence="Everything needed to make it again is here.",
            manifest="aa26d0d85f967b0e" * 4,
            plan="9c3a2083caed2c27" * 4,
            tokenizer="3df99c892e0e0578" * 4,
            template="93bfac8bc99d8ca9" * 4,
            engine="fastokens 0.3.5",
            versions={"packtrain": "0.1.0", "pyarrow": "26.0.1"},
            stages=[
                Stage("scan", 0.3, 12e6, "bytes"),
                Stage("encode", 41.0, 3.3e6, "tokens"),
                Stage("pack", 2.1, None, ""),
            ],
            inputs=[Input("chat", "part-0.jsonl", 12_345_678, "5938476e29c3cef5" * 4)],
            inputs_in_all=3,
            bytes_in_all=55_000_000,
            configuration="version: 1\nsources:\n  - name: chat\n    path: data/*.jsonl\n",
        ),
    )


def with_text(value: Any, text: str) -> Any:
    """The same with `text` for every string in it, keys of dicts included. Words that choose a drawing stay."""
    if isinstance(value, str):
        return text
    if isinstance(value, dict):
        return {f"{text}{at}": with_text(one, text) for at, one in enumerate(value.values())}
    if isinstance(value, list):
        return [with_text(one, text) for one in value]
    if isinstance(value, Histogram):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: with_text(getattr(value, one.name), text) for one in fields(value)})
    return value


@pytest.fixture
def report() -> Report:
    """Every section filled."""
    return a_report()


@pytest.fixture
def fill() -> Callable[[Any, str], Any]:
    """See `with_text`."""
    return with_text
