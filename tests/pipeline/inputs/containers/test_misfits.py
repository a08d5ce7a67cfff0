"""Files that are not what they are called: the message says what they seem to be, on which line, and what to do."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs.containers.misfits import LOOKED_AT, looks_like


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_get_an_answer(data: bytes) -> None:
    said = looks_like(data[:LOOKED_AT])
    assert said == "" or said.split()[0] in ("is", "has", "holds", "looks")


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20) | st.lists(st.integers()), min_size=1))
def test_lines_of_objects_are_not_taken_for_anything_else(row: dict[str, Any]) -> None:
    assert looks_like(f"{json.dumps(row)}\n{json.dumps(row)}\n".encode()) == ""
