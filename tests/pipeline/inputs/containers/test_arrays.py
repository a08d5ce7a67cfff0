"""Token rows of tables as arrays: the same examples and rejects as of lists."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs.blocks import BlockRows, Records
from packtrain.pipeline.inputs.containers.tables import to_arrays, to_rows
from packtrain.pipeline.inputs.scan import columns_of, prepare_rows
from packtrain.stages.prep import PreparedBlock, make_format
from packtrain.stages.prep.tokenized import TokenizedOptions

from tests.support.examples import examples

TYPES = {
    "input_ids": [pa.int32(), pa.uint16(), pa.int64(), pa.uint64()],
    "labels": [pa.int32(), pa.int64()],
    "loss_mask": [pa.uint8(), pa.bool_(), pa.int64()],
    "attention_mask": [pa.int8(), pa.bool_()],
    "seq_lengths": [pa.int32(), pa.int64()],
}
WEIGHTS = st.sampled_from([None, 0.0, 0.5, 1.0, -1.0])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Rows of which some cannot be used; columns may be missing, null, or of large lists."""
    rows: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        ids = draw(st.lists(st.integers(0, 9), max_size=6))
        row: dict[str, Any] = {
            "input_ids": ids,
            "labels": [token if draw(st.booleans()) else -100 for token in ids],
            "loss_mask": [int(draw(st.booleans())) for _ in ids],
            "attention_mask": [1 for _ in ids],
            "seq_lengths": [1] * len(ids) if draw(st.booleans()) else [len(ids)],
        }
        for name in draw(st.sets(st.sampled_from(sorted(row)), max_size=1)):
            row[name] = draw(st.sampled_from([None, [], [0, 2**31], [3, 3], [2, None]]))
        rows.append(row)
    columns = {"id": pa.array([str(number) for number in range(len(rows))])}
    for name, kinds in TYPES.items():
        if name == "input_ids" or draw(st.booleans()):
            kind = draw(st.sampled_from(kinds))
            make = draw(st.sampled_from([pa.list_, pa.large_list]))
            try:
                columns[name] = pa.array([row[name] for row in rows], make(kind))
            except (pa.ArrowInvalid, OverflowError):  # a number that the type does not hold
                columns[name] = pa.array([row[name] for row in rows], make(pa.int64()))
    if draw(st.booleans()):
        columns["w"] = pa.array(draw(st.lists(WEIGHTS, min_size=len(rows), max_size=len(rows))), pa.float64())
    return pa.table(columns)


def shown(prepared: PreparedBlock) -> tuple[Any, ...]:
    made = [
        (
            (one.line, one.sub, one.weight),
            np.asarray(one.ids).tolist(),
            None if one.trained is None else list(map(bool, one.trained)),
        )
        for one in prepared.examples
    ]
    return made, prepared.rejects, prepared.rows


def as_lists(rows: BlockRows) -> BlockRows:
    """Rows with lists for arrays."""
    plain: Records = [
        (number, {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()})
        for number, row in rows.records or ()
    ]
    return replace(rows, records=plain)


@given(tables(), st.sampled_from([None, "seq_lengths"]), st.sampled_from([None, "w"]), st.sampled_from([None, 2]))
@examples(300)
def test_arrays_give_what_lists_give(
    table: pa.Table, lengths: str | None, weight: str | None, take: int | None
) -> None:
    form = make_format("tokenized", TokenizedOptions(lengths_key=lengths, weight_key=weight))
    columns = columns_of(form)
    lists, arrays = to_rows(table, columns, take, None), to_arrays(table, columns, take)
    assert shown(prepare_rows(arrays, form)) == shown(prepare_rows(lists, form))
    assert as_lists(arrays) == lists
    assert as_lists(to_arrays(table, None, take)) == to_rows(table, None, take, None)


def test_numbers_are_arrays_and_other_values_are_not() -> None:
    table = pa.table({"ids": pa.array([[1, 2], [3]]), "text": ["a", "b"], "floats": pa.array([[0.5], []])})
    found: BlockRows = to_arrays(table, None, None)
    first, second = (row for _, row in found.records or [])
    assert isinstance(first["ids"], np.ndarray)
    assert first["ids"].tolist() == [1, 2]
    assert (second["text"], second["floats"]) == ("b", [])
