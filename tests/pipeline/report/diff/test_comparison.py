"""What a diff says of runs that differ in one thing each, held against their rows as plain values."""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.report.diff import digests
from packtrain.pipeline.report.diff.changes import Comparison, SourceExamples
from packtrain.pipeline.report.diff.comparison import compare
from packtrain.pipeline.report.diff.ledger_diff import LABELS, ledger_change
from packtrain.pipeline.run.driver import run
from packtrain.schemas.errors import InputError
from packtrain.schemas.ledger import Ledger, SourceLedger
from packtrain.schemas.rows import IGNORE_INDEX

from tests.support.examples import examples

Row = dict[str, Any]
Make = Callable[..., Path]
PAIRS, TEXTS = 60, 30
WORDS = [
    "the",
    "mules",
    "left",
    "the",
    "valley",
    "before",
    "the",
    "sun",
    "was",
    "up",
    "nobody",
    "had",
    "told",
    "them",
    "how",
    "far",
    "it",
    "would",
    "be",
]


def said(first: int, count: int) -> str:
    return " ".join(WORDS[(first * 7 + 5 * at) % len(WORDS)] for at in range(count))


def pairs(count: int = PAIRS, first: int = 0) -> list[Row]:
    return [
        {"prompt": f"{at}: {said(at, 3 + at % 9)}?", "completion": f" {said(at + 1, 2 + at % 23)}"}
        for at in range(first, first + count)
    ]


def texts(count: int = TEXTS, first: int = 0) -> list[Row]:
    return [{"text": f"{at}. {said(at, 4 + at * 3 % 40)}"} for at in range(first, first + count)]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Make:
    """Runs a configuration that differs from the plain one in what is given; one with the same name runs once."""
    folder = tmp_path_factory.mktemp("runs")

    def write(name: str, rows: list[Row]) -> str:
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def made(
        name: str,
        *,
        tokenizer: Path | str = tiny_tokenizer,
        chat: list[Row] | None = None,
        file: str = "chat",
        text: list[Row] | None = None,
        more: list[Row] | None = None,
        more_name: str = "more",
        chat_keys: Row | None = None,
        text_keys: Row | None = None,
        **keys: Any,
    ) -> Path:
        out = folder / name
        if out.exists():
            return out
        at = f"data/{name}/{file}"
        sources = [
            {"name": "chat", "format": "prompt_completion", "path": write(at, chat or pairs()), **(chat_keys or {})},
            {
                "name": "text",
                "format": "text",
                "path": write(f"data/{name}/text", text or texts()),
                **(text_keys or {}),
            },
        ]
        if more is not None:
            sources.append({"name": more_name, "format": "text", "path": write(f"data/{name}/more", more)})
        data: Row = {
            "out": str(out),
            "cache": str(folder / "cache"),
            "tokenizer": {"path": str(tokenizer), "engine": "tokenizers"},
            "sources": sources,
            "truncate": {"max_length": 64},
            "holdout": {"fraction": 0.2},
            "output": {"shard_bytes": 65536},
            "run": {"workers": 1, "report": False},
        }
        for key, value in keys.items():
            data[key] = {**data[key], **value} if isinstance(data.get(key), dict) else value
        run(data, base=folder)
        return out

    return made


def total(found: Comparison) -> SourceExamples:
    assert found.examples is not None
    return found.examples.sources[0]


def numbers(one: SourceExamples) -> dict[str, int]:
    """What is not 0, by its name."""
    names = list(SourceExamples.__dataclass_fields__)[1:]
    return {name: number for name, number in zip(names, astuple(one)[1:], strict=True) if number}


def asked(found: Comparison) -> dict[str, tuple[Any, Any]]:
    return {one.key: (one.a, one.b) for one in found.settings if not one.spelling}


Stands = dict[str, tuple[str, Counter[tuple[int, int]], Counter[tuple[int, int]], int]]
"""By id: split, (place, token) of each token of one copy, the same of the trained ones, copies."""


def stands(out: Path, read_rows: Callable[..., list[Row]]) -> Stands:
    """What the rows hold of every example, by the slow way."""
    table = pq.read_table(out / "documents.parquet").to_pydict()
    names = dict(zip(table["doc_id"], table["id"], strict=True))
    tokens: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    trained: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    splits: dict[str, str] = {}
    for split in ("train", "holdout"):
        for row in read_rows(out, split):
            at = 0
            for doc, start, size in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
                for step in range(size):
                    key = (start + step, row["input_ids"][at + step])
                    tokens[names[doc]][key] += 1
                    trained[names[doc]][key] += row["labels"][at + step] != IGNORE_INDEX
                splits[names[doc]] = split
                at += size
    assert set(tokens) == set(names.values())
    out_of: Stands = {}
    for name, every in tokens.items():
        copies = min(every.values())
        out_of[name] = (splits[name], every, +trained[name], copies)
    return out_of


def expected(a: Stands, b: Stands) -> dict[str, int]:
    """What a diff must say, if every copy is cut alike and no token stands in two pieces of one copy."""
    both = a.keys() & b.keys()

    def once(counts: Counter[tuple[int, int]], copies: int) -> dict[tuple[int, int], int]:
        return {key: count // copies for key, count in counts.items()}

    changed = {name for name in both if once(a[name][1], a[name][3]) != once(b[name][1], b[name][3])}
    labels = {name for name in both - changed if once(a[name][2], a[name][3]) != once(b[name][2], b[name][3])}
    found = {
        "only_a": len(a.keys() - both),
        "only_b": len(b.keys() - both),
        "same": len(both - changed - labels),
        "tokens": len(changed),
        "labels": len(labels),
        "copies": sum(a[name][3] != b[name][3] for name in both),
        "moved": sum(a[name][0] != b[name][0] for name in both),
    }
    return {name: number for name, number in found.items() if number}


def test_nothing(make: Make) -> None:
    a, b = make("base"), make("again")
    found = compare(a, b)
    assert found.identical
    assert found.same_rows
    assert found.a.manifest[:16] in found.sentence
    assert (found.settings, found.inputs.changes, found.examples, found.lengths) == ([], [], None, None)
    assert set(found.absent) == {"examples", "lengths"}
    assert found.ledger
    assert all(line.change == 0 for line in found.ledger)
    assert found.packing
    assert all(one.a == one.b for one in found.packing)


CHANGES: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, Any]], str]] = {
    "longer": (
        {"truncate": {"max_length": 128}},
        {"truncate.max_length": (64, 128)},
        "max_length 64 → 128",
    ),
    "shorter": (
        {"truncate": {"max_length": 32}},
        {"truncate.max_length": (64, 32)},
        "max_length 64 → 32",
    ),
    "all trained": ({"mask": "all"}, {"mask.policy": ("completion", "all")}, "mask.policy completion → all"),
    "seed": ({"seed": 7}, {"seed": (42, 7)}, "seed 42 → 7"),
    "repeated": ({"chat_keys": {"repeat": 3}}, {"sources.chat.repeat": (None, 3)}, "sources.chat.repeat unset → 3"),
    "cut up": (
        {"truncate": {"max_length": 32, "overlong": "split", "split": {"at": "tokens"}}},
        {
            "truncate.max_length": (64, 32),
            "truncate.overlong": ("truncate", "split"),
            "truncate.split.at": ("turns", "tokens"),
        },
        "max_length 64 → 32; overlong truncate → split; split.at turns → tokens",
    ),
    "wrapped": ({"pack": {"strategy": "wrapped"}}, {"pack.strategy": ("bfd", "wrapped")}, "strategy bfd → wrapped"),
    "fewer": (
        {"filter": {"min_tokens": 20}},
        {"filter.min_tokens": (None, 20)},
        "filter.min_tokens unset → 20",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_key(make: Make, read_rows: Callable[..., list[Row]], name: str) -> None:
    keys, differs, cause = CHANGES[name]
    a, b = make("base"), make(name, **keys)
    found = compare(a, b)
    assert asked(found) == differs
    assert found.sentence.endswith(f": {cause}.")
    assert found.inputs.changes == []
    assert numbers(total(found)) == expected(stands(a, read_rows), stands(b, read_rows))
    assert found.examples is not None
    of_sources = found.examples.sources[1:]
    assert sum(one.same + one.tokens + one.labels + one.only_a for one in of_sources) == total_of(a)


def total_of(out: Path) -> int:
    return int(pq.read_metadata(out / "documents.parquet").num_rows)


def test_the_other_way_round_is_the_opposite(make: Make) -> None:
    a, b = make("base"), make("fewer", filter={"min_tokens": 20})
    there, back = compare(a, b), compare(b, a)
    assert total(there).only_a == total(back).only_b > 0
    assert total(there).only_b == total(back).only_a == 0
    lines = {(one.source, one.name, one.reason): one.change for one in there.ledger}
    assert {(one.source, one.name, one.reason): -one.change for one in back.ledger} == lines
    assert [(one.a, one.b) for one in there.packing] == [(one.b, one.a) for one in back.packing]
    assert there.lengths is not None
    assert back.lengths is not None
    assert (there.lengths.a, there.lengths.b) == (back.lengths.b, back.lengths.a)


def test_rows_that_are_appended(make: Make) -> None:
    found = compare(make("base"), make("appended", chat=pairs(PAIRS + 8)))
    (change,) = found.inputs.changes
    assert (change.what, change.source, change.file, change.rows) == ("appended", "chat", "chat", PAIRS)
    assert change.bytes_a is not None
    assert change.bytes_b is not None
    assert change.bytes_a < change.bytes_b
    assert numbers(total(found)) == {"same": PAIRS + TEXTS, "only_b": 8}
    assert found.examples is not None
    assert [one.id for one in found.examples.shown["only_b"]] == [f"chat/chat:{PAIRS + at + 1}" for at in range(8)]
    line = next(one for one in found.ledger if (one.source, one.name) == ("chat", "rows_read"))
    assert (line.a, line.b, line.change) == (PAIRS, PAIRS + 8, 8)


def test_rows_that_are_changed_are_not_appended(make: Make) -> None:
    rows = pairs(PAIRS + 8)
    rows[3] = {"prompt": "what?", "completion": " something else"}
    found = compare(make("base"), make("changed", chat=rows))
    assert [(one.what, one.rows) for one in found.inputs.changes] == [("changed", None)]
    assert numbers(total(found)) == {"same": PAIRS + TEXTS - 1, "tokens": 1, "only_b": 8} | (
        {"moved": 1} if total(found).moved else {}
    )
    assert found.examples is not None
    (one,) = found.examples.shown["tokens"]
    assert one.id == "chat/chat:4"
    assert one.tokens_a != one.tokens_b


def test_an_appended_file_that_has_gone_meanwhile_has_changed(make: Make, tmp_path: Path) -> None:
    out = make("appended later", chat=pairs(PAIRS + 5))
    assert [one.what for one in compare(make("base"), out).inputs.changes] == ["appended"]
    (out.parent / "data" / "appended later" / "chat.jsonl").write_text("{}\n")
    assert [one.what for one in compare(make("base"), out).inputs.changes] == ["changed"]


def test_a_source_that_is_added(make: Make) -> None:
    a, b = make("base"), make("added", more=texts(10, 500))
    found = compare(a, b)
    assert asked(found) == {"sources.more": (None, "text")}
    assert ": 1 source added." in found.sentence
    assert [(one.what, one.source) for one in found.inputs.changes] == [("added", "more")]
    assert numbers(total(found)) == {"same": PAIRS + TEXTS, "only_b": 10}
    back = compare(b, a)
    assert asked(back) == {"sources.more": ("text", None)}
    assert ": 1 source removed." in back.sentence
    dotted = compare(a, make("dotted", more=texts(10, 500), more_name="v1.more"))
    assert ": 1 source added." in dotted.sentence
    assert numbers(total(back)) == {"same": PAIRS + TEXTS, "only_a": 10}


def test_a_renamed_file(make: Make) -> None:
    found = compare(make("base"), make("renamed", file="talk"))
    (change,) = found.inputs.changes
    assert (change.what, change.file, change.was) == ("renamed", "talk", "chat/chat")
    assert found.same_rows
    assert numbers(total(found)) == {"same": PAIRS + TEXTS}
    assert found.examples is not None
    assert "renamed file" in found.examples.compared


def test_a_row_at_the_top_moves_every_id(make: Make) -> None:
    rows = [*pairs(1, 900), *pairs()]
    found = compare(make("base"), make("topped", chat=rows))
    assert total(found).tokens >= PAIRS - 5, "nearly every line holds another row now"
    assert found.examples is not None
    assert found.examples.contents is not None
    assert (found.examples.contents.both, found.examples.contents.only_a, found.examples.contents.only_b) == (
        PAIRS + TEXTS,
        0,
        1,
    )
    assert str(PAIRS + TEXTS) in found.examples.sentence


def test_duplicates(make: Make) -> None:
    twice = [*pairs(), *pairs(6)]
    a, b = make("twice", chat=twice), make("once", chat=twice, duplicates="drop")
    found = compare(a, b)
    assert asked(found) == {"duplicates": ("keep", "drop")}
    assert numbers(total(found)) == {"same": PAIRS + TEXTS, "only_a": 6}
    (line,) = (one for one in found.ledger if (one.source, one.name) == ("chat", "examples_dropped"))
    assert (line.reason, line.a, line.b) == ("duplicate", 0, 6)


def test_no_duplicates_to_drop_leaves_the_rows_as_they_are(make: Make) -> None:
    found = compare(make("base"), make("none twice", duplicates="drop"))
    assert found.same_rows
    assert not found.identical
    assert found.sentence.endswith("duplicates keep → drop.")
    assert all(line.change == 0 for line in found.ledger)
    assert numbers(total(found)) == {"same": PAIRS + TEXTS}


def test_weights(make: Make, read_rows: Callable[..., list[Row]]) -> None:
    a, b = make("base"), make("weighed", chat_keys={"weight": 1.0}, text_keys={"weight": 3.0})
    found = compare(a, b)
    assert asked(found) == {"sources.chat.weight": (None, 1.0), "sources.text.weight": (None, 3.0)}
    assert total(found).copies > 0
    assert numbers(total(found)) == expected(stands(a, read_rows), stands(b, read_rows))


def test_another_tokenizer(make: Make, make_tokenizer: Callable[..., Path]) -> None:
    found = compare(make("base"), make("other words", tokenizer=make_tokenizer("diff", bos=True)))
    assert {"hash"} <= set(asked(found))
    assert "another tokenizer" in found.sentence
    assert total(found).tokens == PAIRS + TEXTS


def test_a_default_that_is_spelled_out_is_no_change(make: Make) -> None:
    spelled = {
        "chat_keys": {"repeat": 1, "keys": {"prompt": "prompt"}},
        "text_keys": {"format": "auto"},
        "pack": {"window_tokens": 4_000_000_000},
        "keep_untrained": False,
    }
    found = compare(make("base"), make("spelled", **spelled))
    assert asked(found) == {}
    assert {one.key for one in found.settings} >= {"sources.chat.repeat", "pack.window_tokens"}
    assert found.same_rows
    assert not found.identical


@pytest.mark.parametrize(
    "pack",
    [{"align": 8}, {"parallel": {"cp": 4}}, {"parallel": {"cp": 4, "layout": "ring"}}],
    ids=["align", "thd", "ring"],
)
def test_padding_is_no_token(make: Make, pack: dict[str, Any]) -> None:
    name = "-".join(map(str, pack.get("parallel", pack).values()))
    found = compare(make("base"), make(f"padded-{name}", pack=pack))
    assert numbers(total(found)) == {"same": PAIRS + TEXTS}
    assert found.b.tokens > found.a.tokens
    assert found.lengths is not None
    assert found.lengths.a == found.lengths.b


def test_padding_of_a_cut_document_is_no_token(make: Make) -> None:
    """Rows that say how long pieces are without padding say it of cut documents, too."""
    short = {"max_length": 256, "max_completion_length": 5}
    pack = {"parallel": {"cp": 4}}
    found = compare(make("short", truncate=short), make("short-thd", truncate=short, pack=pack))
    assert numbers(total(found)) == {"same": PAIRS + TEXTS}
    assert found.b.tokens > found.a.tokens


def test_lengths_are_those_of_the_rows(make: Make, read_rows: Callable[..., list[Row]]) -> None:
    a, b = make("base"), make("repeated", chat_keys={"repeat": 3})
    found = compare(a, b)
    assert found.lengths is not None
    for out, histogram in ((a, found.lengths.a), (b, found.lengths.b)):
        lengths = sorted(sum(one[1].values()) // one[3] for one in stands(out, read_rows).values())
        assert (histogram.count, histogram.total) == (len(lengths), sum(lengths))
        assert (histogram.quantiles["min"], histogram.quantiles["max"]) == (lengths[0], lengths[-1])
        for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
            assert count == sum(low <= length < high for length in lengths)


def test_without_opening_a_shard(make: Make, tmp_path: Path) -> None:
    a = make("base")
    b = tmp_path / "copy"
    shutil.copytree(make("shorter", truncate={"max_length": 32}), b)
    for shard in b.rglob("*.arrow"):
        if shard.parent.name == "shards":
            shard.write_bytes(bytes(shard.stat().st_size))
    found = compare(a, b, quick=True)
    assert numbers(total(found)) == {"same": PAIRS + TEXTS}
    assert found.examples is not None
    assert found.examples.contents is None
    with pytest.raises(InputError):
        compare(a, b)


def test_many_documents_go_through_files_and_in_lots(
    make: Make, monkeypatch: pytest.MonkeyPatch, read_rows: Callable[..., list[Row]]
) -> None:
    from packtrain.pipeline.report.diff import example_diff

    a, b = make("base"), make("repeated", chat_keys={"repeat": 3})
    whole = compare(a, b)
    monkeypatch.setattr(digests, "IN_MEMORY", 16)
    monkeypatch.setattr(digests, "TOKENS_AT_ONCE", 100)
    monkeypatch.setattr(example_diff, "AT_ONCE", 10)
    in_lots = compare(a, b)
    assert replace(in_lots, made=whole.made) == whole


# Preference pairs


@pytest.fixture(scope="module")
def preferences(make: Make, tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("pairs")

    def made(name: str, rows: list[Row], **keys: Any) -> Path:
        path = folder / f"data-{name}" / "liked.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = {
            "out": str(folder / name),
            "cache": str(make("base").parent / "cache"),
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "liked", "format": "preference", "path": str(path), **keys}],
            "truncate": {"max_length": 64},
            "run": {"workers": 1, "report": False},
        }
        run(data, base=folder)
        return folder / name

    return made


def liked(count: int) -> list[Row]:
    return [
        {"prompt": f"{at}: {said(at, 3)}", "chosen": f" {said(at, 4)}", "rejected": f" {said(at + 1, 3)}"}
        for at in range(count)
    ]


def test_preference_pairs(preferences: Callable[..., Path]) -> None:
    rows = liked(20)
    swapped = [*rows[:19], {**rows[19], "chosen": rows[19]["rejected"], "rejected": rows[19]["chosen"]}]
    a, b = preferences("one", rows), preferences("two", [*swapped, *liked(23)[20:]])
    found = compare(a, b)
    assert found.a.preference
    assert numbers(total(found)) == {"same": 19, "tokens": 1, "only_b": 3}
    assert found.sentence.startswith("B holds ")
    assert {one.name for one in found.packing} >= {"pairs", "tokens"}
    assert numbers(total(compare(a, preferences("three", rows, repeat=2)))) == {"same": 20, "copies": 20}


def test_pairs_and_rows_are_not_compared(make: Make, preferences: Callable[..., Path]) -> None:
    with pytest.raises(InputError):
        compare(make("base"), preferences("other", liked(5)))


# What cannot be compared


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("folder", "does not exist"),
        ("manifest", "is not finished"),
        ("changed manifest", "was changed after it was written"),
        ("shard", "files that its manifest names are missing"),
        ("cut shard", "files that its manifest names are missing"),
        ("documents", "files that its manifest names are missing"),
        ("damaged documents", "documents.parquet is damaged"),
    ],
)
def test_damage_is_told(make: Make, tmp_path: Path, what: str, says: str) -> None:
    a, b = make("base"), tmp_path / "b"
    if what != "folder":
        shutil.copytree(make("seed", seed=7), b)
    manifest, documents = b / "manifest.json", b / "documents.parquet"
    shard = next(iter(b.glob("train/shards/*")), Path())
    match what:
        case "manifest":
            manifest.unlink()
        case "changed manifest":
            manifest.write_text(manifest.read_text().replace('"seed": 7', '"seed": 8'))
        case "shard":
            shard.unlink()
        case "cut shard":
            shard.write_bytes(shard.read_bytes()[:-64])
        case "documents":
            documents.unlink()
        case "damaged documents":
            documents.write_bytes(bytes(documents.stat().st_size))
    for one, other in ((a, b), (b, a)):
        with pytest.raises(InputError, match=says) as raised:
            compare(one, other)
        assert raised.value.exit_code == 2


# The ledger


def test_every_field_of_a_ledger_has_a_label() -> None:
    assert list(LABELS)
    assert set(LABELS) == set(SourceLedger.__dataclass_fields__)


_COUNTS = st.integers(0, 10**12)
_REASONS = st.dictionaries(st.sampled_from(["overlong", "empty", "train", "<b>"]), _COUNTS, max_size=3)
_EMPTY = SourceLedger()
_ENTRIES = st.builds(
    SourceLedger,
    **{
        key: _REASONS if isinstance(getattr(_EMPTY, key), dict) else _COUNTS
        for key in SourceLedger.__dataclass_fields__
    },
)


def ledgers() -> st.SearchStrategy[Ledger]:
    return st.dictionaries(st.sampled_from("abc"), _ENTRIES, max_size=3).map(Ledger)


@examples(30)
@given(ledgers(), ledgers())
def test_changes_add_up(a: Ledger, b: Ledger) -> None:
    lines = ledger_change(a, b)
    sums: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    for line in lines:
        assert line.b == line.a + line.change
        if line.source != "all":
            sums[line.name, line.reason] += line.change
    several = len({*a.sources, *b.sources}) > 1
    if several:
        whole = {(line.name, line.reason): line.change for line in lines if line.source == "all"}
        assert {key: change for key, change in whole.items() if change} == {k: c for k, c in sums.items() if c}
    for name in LABELS:
        there, here = getattr(a.total(), name), getattr(b.total(), name)
        change = sum(here.values()) - sum(there.values()) if isinstance(here, dict) else here - there
        assert change == sum(number for (field, _), number in sums.items() if field == name)


@examples(30)
@given(ledgers(), ledgers())
def test_back_is_the_negative_of_there(a: Ledger, b: Ledger) -> None:
    def changes(one: Ledger, other: Ledger) -> dict[Any, float]:
        return {(line.source, line.name, line.reason): line.change for line in ledger_change(one, other)}

    assert changes(b, a) == {key: -change for key, change in changes(a, b).items()}
    assert not any(changes(a, a).values())
