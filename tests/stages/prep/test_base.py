"""Decoding, its complaints, and the account that `prepare` keeps."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import RowRejectedError
from packtrain.stages.prep import FORMATS, Format, Options, ReaderCode, make_format


def rejection(line: bytes, name: str = "text") -> tuple[str, str]:
    with pytest.raises(RowRejectedError) as caught:
        make_format(name).decode(line)
    return caught.value.reason, caught.value.detail


@pytest.mark.parametrize(("levels", "reason"), [(98, None), (99, "too_deep"), (50_000, "too_deep")])
def test_messages_may_not_nest_too_deeply(levels: int, reason: str | None) -> None:
    line = b'{"messages": [{"role": "user", "content": "a[[[[", "x": ' + b"[" * levels + b"]" * levels + b"}]}"
    if reason is None:
        assert make_format("messages").decode(line).messages[0]["role"] == "user"
    else:
        assert rejection(line, "messages")[0] == reason


def test_decoded_rows_give_what_lines_give() -> None:
    row = {"text": "a", "other": object()}
    done = make_format("text").prepare([(0, row), (1, {"text": 1}), (2, {}), (3, {"text": "\ud800"})])
    assert [e.text for e in done.examples] == ["a"]
    assert [(line, reason) for line, reason, _ in done.rejects] == [
        (1, "wrong_type"),
        (2, "missing_key"),
        (3, "invalid_utf8"),
    ]
    assert done.rows == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
"""Any value; texts hold no surrogates."""

AS_IT_IS = Options(reader=ReaderCode(function="read", code="def read(row):\n    return row\n"))


OPTIONS = {
    "apps": [Options(), Options(prompt_only=True, max_solutions=1)],
    "prompt_completion": [Options(), Options(prompt_only=True), Options(style="chat", per_turn=True)],
    "messages": [Options(), Options(per_turn=True)],
    "preference": [Options(), Options(style="chat")],
    "tokenized": [Options(), Options(keys={"labels": "attention_mask"})],
    "python": [AS_IT_IS],
}


def any_format(name: str) -> Format:
    return make_format(name, AS_IT_IS if name == "python" else None)


TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}]
VALID: dict[str, Any] = {
    "apps": {"question": "q", "solutions": ["s"], "input_output": "{}", "id": 1},
    "prompt_completion": {"prompt": TURNS[:1], "completion": TURNS[1:], "tools": [{"name": "f"}]},
    "messages": {"messages": [*TURNS, {"role": "assistant", "content": ["x"], "weight": 0}], "tools": "[]"},
    "text": {"text": "a"},
    "sharegpt": {"conversations": [{"from": "gpt", "value": "a"}], "system": "s"},
    "alpaca": {"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]], "system": "s"},
    "preference": {"prompt": TURNS[:1], "chosen": TURNS[1:], "rejected": [{"role": "assistant", "content": "b"}]},
    "tokenized": {"input_ids": [3, 4], "labels": [-100, 4], "loss_mask": [True, 1], "attention_mask": [1, 1]},
    "python": {"messages": TURNS, "group": "g"},
}


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within one, itself included."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, inner in items for place in places(inner, (*here, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    out = dict(value) if isinstance(value, dict) else list(value)
    out[place[0]] = changed(value[place[0]], place[1:], new)
    return out


@given(data=st.data())
@pytest.mark.parametrize("name", FORMATS)
def test_one_wrong_value_anywhere_is_an_example_or_told_by_name(name: str, data: st.DataObject) -> None:
    """And a decoded row gives what a line gives."""
    made = make_format(name, data.draw(st.sampled_from(OPTIONS.get(name, [Options()]))))
    place = data.draw(st.sampled_from(places(VALID[name])[1:]))
    row = changed(VALID[name], place, data.draw(JSON | st.sampled_from([-1, 0.5, "", "[", [], {}])))
    by_line, by_row = made.prepare([(7, json.dumps(row).encode())]), made.prepare([(7, row)])
    for done in (by_line, by_row):
        assert done.rows == 1 == len(done.rejects) + done.filtered.total() + len({one.line for one in done.examples})
        for line, reason, detail in done.rejects:
            assert line == 7
            assert reason.isidentifier()
            assert "`" in detail or reason == "invalid_json"
    # The two ways differ on purpose in what JSON has no form for, and in nulls within messages.
    if not any(word in json.dumps(row) for word in ("NaN", "Infinity", "null")):
        assert [reason for _, reason, _ in by_line.rejects] == [reason for _, reason, _ in by_row.rejects]
        assert (len(by_line.examples), by_line.filtered) == (len(by_row.examples), by_row.filtered)


@given(st.binary(max_size=60))
def test_no_bytes_whatever_raise(line: bytes) -> None:
    for name in FORMATS:
        done = any_format(name).prepare([(0, line)])
        assert done.rows + done.blank == 1
        assert done.rows == len(done.rejects) + done.filtered.total() + len(done.examples)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"python"}))
def test_a_group_that_the_user_names_is_that_of_each_example(name: str) -> None:
    """Whatever a format's own groups are; null is none of the user's, so that those of the format stay."""
    row = VALID[name]
    plain = make_format(name).prepare([(0, row)]).examples
    named = make_format(name, Options(keys={"group": "thread"}))
    rows = [{**row, "thread": "a b"}, {**row, "thread": 7}, {**row, "thread": None}, {**row, "thread": [1]}, row]
    done = named.prepare([(line, json.dumps(row).encode()) for line, row in enumerate(rows)])
    groups = [{example.group for example in done.examples if example.line == line} for line in range(3)]
    assert groups == [{"a b"}, {"7"}, {example.group for example in plain}]
    assert [(line, reason) for line, reason, _ in done.rejects] == [(3, "wrong_type"), (4, "missing_key")]
