"""Decoding, its complaints, and the account that `prepare` keeps."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import RowFilteredError, RowRejectedError
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


def test_a_byte_order_mark_is_accepted() -> None:
    assert make_format("text").decode(b'\xef\xbb\xbf{"text": "a"}').text == "a"
    assert rejection(b'\xef\xbb\xbf{"text": 1}') == ("wrong_type", "`text`: expected `str`, got `int`")
    assert rejection(b"\xef\xbb\xbf")[0] == "invalid_json"


def test_prepare_accounts_for_every_row() -> None:
    lines = [
        b'{"question": "q", "solutions": "[\\"a\\", \\"a\\\\n\\", \\"b\\", \\"\\"]", "id": 7}\n',
        b"\n",
        b"  \t\r\n",
        b"",
        b'{"question": "q"}\n',
        b'{"question": 3}\n',
        b'{"question": "r", "solutions": ["c"]}',
    ]
    done = make_format("apps").prepare(enumerate(lines, start=10))
    assert [(e.line, e.sub, e.group) for e in done.examples[:2]] == [(10, 0, "7"), (10, 2, "7")]
    assert [e.line for e in done.examples] == [10, 10, 16]
    assert done.rejects == [(15, "wrong_type", "`question`: expected `str`, got `int`")]
    assert done.filtered == {"no_solution": 1}
    assert done.skipped == {"duplicate": 1, "empty": 1}
    assert (done.rows, done.blank) == (4, 3)


def test_decoded_rows_give_what_lines_give() -> None:
    row = {"text": "a", "other": object()}
    done = make_format("text").prepare_rows([(0, row), (1, {"text": 1}), (2, {}), (3, {"text": "\ud800"})])
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

MESSAGE = st.dictionaries(
    st.sampled_from(["role", "content", "train", "weight", "tool_calls", "function_call", "from", "value", "name"]),
    JSON | st.sampled_from(["user", "assistant", "function", "gpt", "function_call"]),
    max_size=5,
)
PART = st.fixed_dictionaries({}, optional={"type": JSON | st.just("text"), "text": JSON})
FIELD = {
    "apps": ["question", "id", "solutions", "input_output", "difficulty", "starter_code"],
    "prompt_completion": ["prompt", "completion", "tools"],
    "messages": ["messages", "tools"],
    "text": ["text"],
    "sharegpt": ["conversations", "system", "tools"],
    "alpaca": ["instruction", "input", "output", "history", "system"],
    "preference": ["prompt", "chosen", "rejected", "tools"],
    "tokenized": ["input_ids", "labels", "loss_mask", "attention_mask", "seq_lengths"],
    "python": ["text", "messages", "prompt", "completion", "input_ids", "chosen", "rejected", "group", "other"],
}
VALUE = (
    JSON
    | st.text(min_size=1)
    | st.lists(MESSAGE, max_size=3)
    | st.lists(st.fixed_dictionaries({"role": st.text(), "content": st.lists(PART, max_size=2)}), max_size=2)
    | st.lists(st.integers(-101, 5), max_size=3)
    | st.sampled_from(['["a"]', "[1]", "{}", '{"fn_name": 3}', '{"fn_name": "f"}', "[", " "])
)


AS_IT_IS = Options(reader=ReaderCode(function="read", code="def read(row):\n    return row\n"))


def any_format(name: str) -> Format:
    return make_format(name, AS_IT_IS if name == "python" else None)


@given(data=st.data())
@pytest.mark.parametrize("name", FORMATS)
def test_no_value_whatever_raises_anything_else(name: str, data: st.DataObject) -> None:
    options: list[Any] = [None]
    if name == "python":
        options = [AS_IT_IS]
    if name == "alpaca":
        options = [Options(), Options(style="plain"), Options(per_turn=True)]
    if name == "preference":
        options = [Options(), Options(style="chat")]
    if name == "tokenized":
        options = [Options(), Options(keys={"mask": "attention_mask"})]
    if name == "messages":
        options = [Options(), Options(per_turn=True)]
    if name == "apps":
        options = [
            Options(),
            Options(style="classic"),
            Options(prompt_only=True, max_solutions=1),
        ]
    if name == "prompt_completion":
        options = [
            Options(),
            Options(prompt_only=True),
            Options(style="chat", per_turn=True),
        ]
    made = make_format(name, data.draw(st.sampled_from(options)))
    row = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELD[name], VALUE)))
    outcomes: list[int | str] = []
    details: list[str] = []
    for decoded in (False, True):
        try:
            typed = made.convert(row) if decoded else made.decode(json.dumps(row).encode())
            outcomes.append(len(made.examples(typed, 0, Counter())))
        except RowRejectedError as error:
            outcomes.append(error.reason)
            if error.reason not in ("invalid_json", "invalid_utf8"):
                details.append(error.detail)
        except RowFilteredError as error:
            outcomes.append(error.reason)
    assert all("`" in detail for detail in details)  # each names the key
    # The two ways differ on purpose in what JSON has no form for, and in nulls within messages.
    if not any(word in json.dumps(row) for word in ("NaN", "Infinity", "null")):
        assert outcomes[0] == outcomes[1]


TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}]
VALID: dict[str, Any] = {
    "apps": {"question": "q", "solutions": ["s"], "input_output": "{}", "id": 1},
    "prompt_completion": {"prompt": TURNS[:1], "completion": TURNS[1:], "tools": [{"name": "f"}]},
    "messages": {"messages": [*TURNS, {"role": "assistant", "content": ["x"], "weight": 0}], "tools": "[]"},
    "text": {"text": "a"},
    "sharegpt": {
        "conversations": [{"from": "function_call", "value": '{"name": "f", "arguments": {}}'}],
        "system": "s",
    },
    "alpaca": {"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]], "system": "s"},
    "preference": {"prompt": TURNS[:1], "chosen": TURNS[1:], "rejected": [{"from": "gpt", "value": "b"}]},
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
    made = any_format(name)
    assert len(made.prepare([(0, json.dumps(VALID[name]).encode())]).examples) == 1
    place = data.draw(st.sampled_from(places(VALID[name])[1:]))
    row = changed(VALID[name], place, data.draw(JSON | st.sampled_from([-1, 0.5, "", "[", [], {}])))
    for done in (made.prepare([(7, json.dumps(row).encode())]), made.prepare_rows([(7, row)])):
        assert done.rows == 1 == len(done.rejects) + done.filtered.total() + len({one.line for one in done.examples})
        for line, reason, detail in done.rejects:
            assert line == 7
            assert reason.isidentifier()
            assert "`" in detail or reason == "invalid_json"


@given(st.binary(max_size=60))
def test_no_bytes_whatever_raise(line: bytes) -> None:
    for name in FORMATS:
        done = any_format(name).prepare([(0, line)])
        assert done.rows + done.blank == 1
        assert done.rows == len(done.rejects) + done.filtered.total() + len(done.examples)
