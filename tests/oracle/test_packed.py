"""packtrain writes what an independent packer writes: every row, every document, every count of the ledger."""

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from tests import kit
from tests.oracle.accounts import UNKNOWN, Lines, actual_rows, cuts, expected_ledger, expected_row, look_up
from tests.oracle.corpora import MARKED, configurations, lines_of
from tests.oracle.packer import IGNORED, Example, Packer, Piece, Reader, Row
from tests.support.examples import examples

Tokenizers = dict[bool, tuple[Path, Reader]]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    """Without and with a token that the tokenizer puts before plain texts."""
    from transformers import AutoTokenizer

    root, found = tmp_path_factory.mktemp("tokenizers"), {}
    for bos in (False, True):
        folder = kit.tokenizer(root / str(bos), bos=bos)
        found[bos] = folder, Reader(AutoTokenizer.from_pretrained(folder, chat_template=MARKED))
    return found


@given(data=st.data())
@examples(12, derandomize=True, phases=[Phase.generate])  # to shrink takes minutes: each example is a run
def test_every_token_is_where_it_belongs(data: st.DataObject, tokenizers: Tokenizers) -> None:
    hold_to_the_packer(data, tokenizers)


@pytest.mark.slow
@given(data=st.data())
@examples(28, derandomize=True, phases=[Phase.generate])
def test_every_token_of_more_data_is_where_it_belongs(data: st.DataObject, tokenizers: Tokenizers) -> None:
    hold_to_the_packer(data, tokenizers)


def hold_to_the_packer(data: st.DataObject, tokenizers: Tokenizers) -> None:
    """Make data and a configuration, pack them, and check all that was written."""
    config = data.draw(configurations(), "configuration")
    folder, reader = tokenizers[data.draw(st.booleans(), "bos")]
    weighted = data.draw(st.booleans(), "weights")
    corpus = {one["name"]: data.draw(lines_of(one["name"], weighted), one["name"]) for one in config["sources"]}
    for one in config["sources"]:
        one["keys"] = one["keys"] if weighted else {}
    every = [
        example
        for name, (_, rows) in corpus.items()
        for line, row in rows.items()
        for example in reader.examples(name, line, row)
    ]
    with tempfile.TemporaryDirectory() as place:
        for name, (lines, _) in corpus.items():
            (Path(place) / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line, _ in lines.lines))
        keys = {key: value for key, value in config.items() if key != "sources"}
        run = kit.configure(Path(place), *config["sources"], **keys)
        check(config, kit.merged(run, {"tokenizer": {"path": str(folder)}}), every, corpus)


def check(config: Row, run: Row, every: list[Example], corpus: dict[str, tuple[Lines, dict[int, Row]]]) -> None:
    """Run a configuration, and hold all that it writes against the examples."""
    whole = Packer(config, every, {})
    silent = ("--set", "run.report=false")
    if not whole.pieces and kit.cli("run", kit.saved(run), *silent).code == 2:  # nothing is left to pack
        check_left_out(whole)
        return
    packed = kit.packed(run)
    written = look_up(packed, every, {one.id: whole.limited(one) for one in every})
    packer = Packer(config, every, written)
    assert written.keys() == packer.pieces.keys()
    check_documents(packed, packer)
    check_division(packer)
    check_left_out(packer)
    check_copies(packer)
    placed = {split: check_rows(packed, packer, split) for split in packed.splits}
    check_weights(packed, packer, placed)
    check_ledger(packed, packer, placed, {name: lines for name, (lines, _) in corpus.items()})
    check_rejects(packed, {name: lines for name, (lines, _) in corpus.items()})


def check_documents(packed: kit.Packed, packer: Packer) -> None:
    """documents.parquet names the packed examples, in their order, with their places; groups are not divided."""
    order = [example for example in packer.examples if example.id in packer.pieces]
    found = packed.documents()
    assert [one["id"] for one in found] == [example.id for example in order]
    sides: dict[Any, set[str]] = defaultdict(set)
    for one, example in zip(found, order, strict=True):
        place = example.id.partition("/")[2].split("/")[0]
        assert (one["source"], one["group"], one["tokens"]) == (example.source, example.group, len(example.ids))
        assert f"{one['file']}:{one['line']}" == place
        split = packer.written[example.id].split
        sides[example.says].add(split)
        if example.group and packer.config["holdout"].get("by", "group") == "group":
            sides[example.group].add(split)
    if not any(example.group for example in order) or packer.config["holdout"].get("by") == "example":
        assert all(len(each) == 1 for each in sides.values()), "equal examples are in one split"
    assert all(len(each) == 1 for key, each in sides.items() if isinstance(key, str))


def check_division(packer: Packer) -> None:
    """Long examples are divided into pieces that fit and that leave out nothing that could be trained."""
    for name, pieces in packer.pieces.items():
        example = pieces[0].example
        if packer.divided(example):
            asked, (low, high) = example.asked(), packer.limited(example)
            left_out = {*range(low, high)} - {place for piece in pieces for place in range(piece.fresh, piece.end)}
            assert not left_out or not packer.config["keep_untrained"], name
            assert not any(asked[place] and asked[place - 1] and place - 1 in left_out for place in left_out)
            assert all(piece.end - piece.start <= packer.capacity for piece in pieces)


def check_left_out(packer: Packer) -> None:
    """A long example is left out only if each of its pieces could have been without a label."""
    for example in packer.examples:
        if packer.dropped.get(example.id) == "cut_untrained" and packer.divided(example):
            # Or one piece would hold two tokens that are asked for, of which the second has a label.
            assert not packer.config["keep_untrained"]
            low, high = packer.limited(example)
            assert sum(example.asked()[low:high]) < 3 + (high - low) // packer.capacity


def check_copies(packer: Packer) -> None:
    """Each is there as often as `repeat` says, or as weights ask within half of its longest example."""
    tokens, packed, longest = Counter[str](), Counter[str](), Counter[str]()
    sources = {one["name"]: one for one in packer.config["sources"]}
    for name, pieces in packer.pieces.items():
        written, source = packer.written[name], pieces[0].example.source
        if written.split == "holdout":
            assert written.copies == 1
            continue
        if "weight" not in sources[source]:
            assert written.copies == sources[source].get("repeat", 1)
        size = sum(piece.end - piece.start for piece in pieces)
        tokens[source] += size
        packed[source] += size * written.copies
        longest[source] = max(longest[source], size)
    if tokens and "weight" in packer.config["sources"][0]:
        scale = max(tokens[name] / sources[name]["weight"] for name in tokens)
        for name in tokens:
            assert abs(packed[name] - scale * sources[name]["weight"]) <= longest[name] / 2 + 1


def check_rows(packed: kit.Packed, packer: Packer, split: str) -> list[list[Piece]]:
    """Every row of a split, token by token; returns what is in each."""
    plan = packer.rows(split)
    by_place = defaultdict[tuple[str, int], set[Piece]](set)  # copies of one piece may be cut at different ends of rows
    for piece in (piece for row in plan for piece in row):
        by_place[piece.example.id, piece.start].add(piece)
    placed = []
    for row in actual_rows(packed, split):
        pieces = [
            max((one for one in by_place[name, start] if packer.padded(one) <= size), key=lambda one: one.end)
            for name, start, size in zip(row["ids"], row["doc_starts"], row["seq_lengths"], strict=True)
        ]
        row.pop("loss_weights", None)
        assert row == expected_row(pieces, packer)
        assert len(row["input_ids"]) <= packer.capacity
        assert len(pieces) <= (packer.pack["max_docs"] or len(pieces))
        placed.append(pieces)
    names, wanted = ([[(one.example.id, one.start) for one in row] for row in rows] for rows in (placed, plan))
    apart = any(written.copies > 1 for written in packer.written.values())  # copies stand apart, which may cost rows
    if packer.strategy == "tight" or packer.pack["max_docs"] or apart:
        assert Counter(one for row in names for one in row) == Counter(one for row in wanted for one in row)
        assert packer.pack["max_docs"] or len(names) <= len(wanted) + apart * max(1, len(wanted) // 100)
    elif packer.pack["shuffle"]:
        assert sorted(names) == sorted(wanted)
    else:
        assert names == wanted
    return placed


def check_weights(packed: kit.Packed, packer: Packer, placed: dict[str, list[list[Piece]]]) -> None:
    """The weight of every label: of its message, its example and its source, by the labels of its piece."""
    by_source = {one["name"]: one["loss_weight"] for one in packer.config["sources"]}
    found, expected = [], []
    for split, rows in placed.items():
        for row, pieces in zip(packed.rows(split), rows, strict=True):
            mine: list[float] = []
            for piece, size in zip(pieces, row["seq_lengths"], strict=True):
                weights = piece.example.weights[piece.start : piece.end]
                labels = piece.labels()
                count = sum(label != IGNORED for label in labels)
                share = 1 if packer.config["loss"]["normalize"] == "token" else max(count, 1)
                factor = by_source[piece.example.source]
                mine += [
                    0 if label == IGNORED else weight * factor / share
                    for label, weight in zip(labels, weights, strict=True)
                ]
                mine += [0] * (size - len(labels))
            found += row.get("loss_weights", [float(label != IGNORED) for label in row["labels"]])
            expected += mine
    assert np.allclose(found, expected, rtol=1e-6, atol=0)
    has_column = "loss_weights" in packed.table(packed.splits[0]).column_names
    asked_for = (
        any(one != 1 for one in by_source.values())  # even if no example of that source is packed
        or packer.config["loss"]["normalize"] != "token"
        or any(weight not in (0, 1) for example in packer.examples for weight in example.weights)
    )
    assert any(one not in (0, 1) for one in expected) <= has_column <= asked_for


def check_ledger(
    packed: kit.Packed, packer: Packer, placed: dict[str, list[list[Piece]]], lines: dict[str, Lines]
) -> None:
    """All counts of every source."""
    labels: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    inside: dict[str, set[Piece]] = defaultdict(set)
    padding: Counter[str] = Counter()
    together: Counter[str] = Counter()
    for split, rows in placed.items():
        for row, pieces in zip(packed.rows(split), rows, strict=True):
            for (example, _), times in Counter((piece.example, piece.start) for piece in pieces).items():
                together[example.source] += times - 1
            for piece, size in zip(pieces, row["seq_lengths"], strict=True):
                name = piece.example.id
                trained = sum(label != IGNORED for label in piece.labels())
                head = piece.fresh == piece.start and piece.example.asked()[piece.start]
                labels[name] = labels[name][0] + trained, labels[name][1] + head
                inside[name].add(piece)
                padding[piece.example.source] += size - (piece.end - piece.start)
    for source, actual in packed.ledger.items():
        expected = expected_ledger(source, lines[source], packer, labels)
        expected["tokens_packed"] += padding[source]
        expected["labels_masked"] += padding[source]
        expected["tokens_created"] += Counter(alignment=padding[source])
        expected["copies_together"] = together[source]
        if packer.masks[source]["policy"] == "all":  # this packer does not know how a prompt falls into turns
            ignored = {*UNKNOWN, "turns_cut"}
        else:
            ignored = {*UNKNOWN}
            expected["turns_cut"] = sum(
                packer.written[name].copies * cuts(packer.pieces[name][0].example, [*pieces])
                for name, pieces in inside.items()
                if packer.pieces[name][0].example.source == source
            )
        keys = (expected.keys() | actual.keys()) - ignored
        pairs = {key: (actual.get(key) or 0, expected.get(key) or 0) for key in keys}
        assert {key: pair for key, pair in pairs.items() if pair[0] != pair[1]} == {}, source


def check_rejects(packed: kit.Packed, lines: dict[str, Lines]) -> None:
    """rejects.jsonl names each rejected line once, with its reason."""
    found = sorted((one["source"], one["line"], one["reason"]) for one in packed.rejects())
    assert found == sorted(
        (name, number, kind[1])
        for name, one in lines.items()
        for number, (_, kind) in enumerate(one.lines, 1)
        if kind is not None and kind[0] == "rejected"
    )
