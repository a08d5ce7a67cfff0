"""What rows of every format become, by eye: each row beside its examples, in the columns that other tools read."""

import json
from typing import Any

import pytest
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options, make_format, public_row
from packtrain.stages.prep.sharegpt import ROLES

from tests.kit import Row

USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
BAD = {"role": "assistant", "content": "Go"}
HUMAN, GPT = {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}
SYSTEM = {"role": "system", "content": "S"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": None, "b": 1.5}}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL], "train": False, "weight": 0, "score": 10**30}
RESULT = {"role": "tool", "content": ["plain", {"type": "text", "text": "x", "cache": True}], "train": None}
OLD_CALL = {"name": "f", "arguments": '{"a": 1}'}
PAIR = {"prompt": [USER], "completion": [ASSISTANT]}
LIKED = {"prompt": [USER], "chosen": [ASSISTANT], "rejected": [BAD]}
CHAT, EACH_TURN, PACKED = Options(style="chat"), Options(per_turn=True), Options(keys={"lengths": "seq_lengths"})
STANFORD = (
    "Below is an instruction that describes a task{}. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}### Response:\n"
)


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def assistant(text: str) -> Row:
    return {"role": "assistant", "content": text}


def keys(**names: str) -> Options:
    return Options(keys=dict(names))


def ids(*flags: bool) -> Row:
    """Tokens 5, 6, … of which some are trained."""
    tokens = list(range(5, 5 + len(flags)))
    return {"input_ids": tokens, "labels": [one if flag else -100 for one, flag in zip(tokens, flags, strict=True)]}


IDS = {"input_ids": [5, 6, 7]}
PACKED_ROW = {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, 7, 8, -100], "seq_lengths": [2, 1, 2]}
PADDED = {
    "input_ids": [5, 6, 0, 8, 0, 0],
    "labels": [-100, 6, -100, -100, -100, -100],
    "seq_lengths": [3, 2, 1],
    "seq_lengths_unpadded": [2, 1, 0],
    "loss_weights": [0, 1, 0, 0.0, 0, 0],
}
HISTORY = {"instruction": "C", "output": "c", "system": "S", "history": [["A", "a"], ["B", "b"]]}

CASES: list[tuple[str, Options, Row, list[Row]]] = [
    ("text", Options(), {"text": " a\n\0"}, [{"text": " a\n\0"}]),
    ("text", keys(text="body"), {"text": 1, "body": "é"}, [{"text": "é"}]),
    # The assistant's last turn is the completion; messages are carried as they are.
    ("messages", Options(), {"messages": [USER, ASSISTANT]}, [PAIR]),
    ("messages", Options(), {"messages": [USER, ASSISTANT, USER]}, [{"messages": [USER, ASSISTANT, USER]}]),
    ("messages", Options(), {"messages": [ASSISTANT]}, [{"prompt": [], "completion": [ASSISTANT]}]),
    (
        "messages",
        Options(),
        {"messages": [USER, {"role": "assistant", "tool_calls": []}, RESULT, CALLING]},
        [{"prompt": [USER, {"role": "assistant", "tool_calls": []}, RESULT], "completion": [CALLING]}],
    ),
    *(
        ("messages", Options(), {"messages": [USER], "tools": given}, [{"messages": [USER], "tools": TOOLS}])
        for given in (TOOLS, json.dumps(TOOLS))
    ),
    *(("messages", Options(), {"messages": [USER], "tools": none}, [{"messages": [USER]}]) for none in (None, " ")),
    (
        "messages",
        keys(messages="chat log", tools="functions"),
        {"chat log": [USER], "functions": TOOLS, "messages": 5, "tools": 6},
        [{"messages": [USER], "tools": TOOLS}],
    ),
    (  # weights become flags
        "messages",
        Options(),
        {"messages": [USER | {"weight": None}, ASSISTANT | {"weight": 0}, USER, ASSISTANT | {"weight": 1.0}]},
        [
            {
                "prompt": [USER | {"weight": None}, ASSISTANT | {"weight": 0, "train": False}, USER],
                "completion": [ASSISTANT | {"weight": 1.0}],
            }
        ],
    ),
    (  # the calls of old
        "messages",
        Options(),
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "function_call": OLD_CALL},
                {"role": "function", "name": "f", "content": "2"},
                ASSISTANT,
            ],
            "functions": [{"name": "f", "parameters": {}}],
        },
        [
            {
                "prompt": [
                    USER,
                    {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": OLD_CALL}]},
                    {"role": "tool", "name": "f", "content": "2"},
                ],
                "completion": [ASSISTANT],
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            }
        ],
    ),
    ("messages", Options(), {"messages": [USER, ASSISTANT], "images": [], "audio": None}, [PAIR]),
    # An answer says something by its words, its thought or its calls.
    *(
        ("messages", Options(), {"messages": [USER, answer]}, [{"prompt": [USER], "completion": [answer]}])
        for answer in (
            {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "\n", "tool_calls": [CALL]},
            {"role": "assistant", "content": " ", "reasoning_content": "hm"},
        )
    ),
    # ShareGPT
    ("sharegpt", Options(), {"conversations": [HUMAN, GPT]}, [PAIR]),
    ("sharegpt", Options(), {"conversations": [USER, ASSISTANT]}, [PAIR]),
    ("sharegpt", Options(), {"conversations": [HUMAN, GPT, HUMAN]}, [{"messages": [USER, ASSISTANT, USER]}]),
    (
        "sharegpt",
        Options(),
        {"conversations": [HUMAN | {"id": [1, None]}, GPT | {"weight": 0}]},
        [{"prompt": [USER | {"id": [1, None]}], "completion": [ASSISTANT | {"weight": 0, "train": False}]}],
    ),
    (
        "sharegpt",
        Options(),
        {
            "conversations": [
                HUMAN,
                {"from": "function_call", "value": json.dumps(OLD_CALL)},
                {"from": "observation", "value": "3"},
                {"from": "function_call", "value": json.dumps([OLD_CALL, OLD_CALL])},
            ],
            "tools": json.dumps(TOOLS),
        },
        [
            {
                "prompt": [
                    USER,
                    assistant("") | {"tool_calls": [{"type": "function", "function": OLD_CALL}]},
                    {"role": "tool", "content": "3"},
                ],
                "completion": [assistant("") | {"tool_calls": [{"type": "function", "function": OLD_CALL}] * 2}],
                "tools": TOOLS,
            }
        ],
    ),
    ("sharegpt", Options(), {"system": "S", "conversations": [HUMAN]}, [{"messages": [SYSTEM, USER]}]),
    (
        "sharegpt",
        Options(),
        {"system": "S", "conversations": [{"from": "system", "value": "S"}, HUMAN]},
        [{"messages": [SYSTEM, USER]}],
    ),
    *(
        ("sharegpt", Options(), {"system": none, "conversations": [HUMAN]}, [{"messages": [USER]}])
        for none in ("", None)
    ),
    (
        "sharegpt",
        keys(conversations="dialog", system="sys", tools="fs"),
        {"dialog": [HUMAN], "sys": "S", "fs": TOOLS, "system": 5},
        [{"messages": [SYSTEM, USER], "tools": TOOLS}],
    ),
    # Alpaca
    (
        "alpaca",
        Options(),
        {"instruction": "Add.", "input": "1 2", "output": "3", "text": "whatever"},
        [{"prompt": [user("Add.\n1 2")], "completion": [assistant("3")]}],
    ),
    *(
        (
            "alpaca",
            Options(),
            {"instruction": one, "input": two, "output": "3"},
            [{"prompt": [user("Add.")], "completion": [assistant("3")]}],
        )
        for one, two in (("Add.", ""), ("Add.", None), ("", "Add."))
    ),
    (
        "alpaca",
        Options(),
        HISTORY,
        [
            {
                "prompt": [SYSTEM, user("A"), assistant("a"), user("B"), assistant("b"), user("C")],
                "completion": [assistant("c")],
            }
        ],
    ),
    (
        "alpaca",
        Options(style="plain"),
        {"instruction": "Add {input}.", "input": "{x}", "output": "3"},
        [
            {
                "prompt": STANFORD.format(
                    ", paired with an input that provides further context", "Add {input}.\n\n### Input:\n{x}\n\n"
                ),
                "completion": "3",
            }
        ],
    ),
    (
        "alpaca",
        Options(style="plain"),
        {"instruction": "Add.", "output": "3"},
        [{"prompt": STANFORD.format("", "Add.\n\n"), "completion": "3"}],
    ),
    (
        "alpaca",
        keys(input="context", output="response"),
        {"instruction": "A", "context": "B", "response": "C", "input": 1, "output": 2},
        [{"prompt": [user("A\nB")], "completion": [assistant("C")]}],
    ),
    # Prompts and completions
    *(
        ("prompt_completion", Options(), row, [row])
        for row in (
            {"prompt": " 2 + 2 =", "completion": " 4\n"},
            {"prompt": "", "completion": "x"},
            {"prompt": [USER], "completion": [ASSISTANT, USER, ASSISTANT], "tools": TOOLS},
        )
    ),
    ("prompt_completion", CHAT, {"prompt": "Hi", "completion": "Hello"}, [PAIR]),
    (
        "prompt_completion",
        Options(prompt_only=True),
        {"prompt": [USER], "completion": 5},
        [{"messages": [USER]}],
    ),
    # Preference
    *(
        ("preference", Options(), row, [row])
        for row in (LIKED | {"tools": TOOLS}, {"prompt": "a", "chosen": " b", "rejected": " c"})
    ),
    ("preference", CHAT, {"prompt": "Hi", "chosen": "Hello", "rejected": "Go"}, [LIKED]),
    ("preference", CHAT, LIKED, [LIKED]),
    *(  # the prompt within the answers
        ("preference", Options(), {"chosen": [USER, ASSISTANT], "rejected": [USER, BAD]} | prompt, [LIKED])
        for prompt in ({}, {"prompt": None}, {"prompt": "Hi"}, {"prompt": [USER]})
    ),
    (
        "preference",
        Options(),
        {"chosen": [USER, ASSISTANT], "rejected": [USER, ASSISTANT, USER]},
        [{"prompt": [USER], "chosen": [ASSISTANT], "rejected": [ASSISTANT, USER]}],
    ),
    (
        "preference",
        Options(),
        {"chosen": "Q: a A: b", "rejected": "Q: a A: c"},
        [{"prompt": "Q: a A:", "chosen": " b", "rejected": " c"}],
    ),
    ("preference", Options(), {"prompt": "Hi", "chosen": [ASSISTANT], "rejected": [BAD]}, [LIKED]),
    (
        "preference",
        keys(prompt="conversations"),
        {"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "Go"}},
        [LIKED],
    ),
    (
        "preference",
        keys(prompt="question", chosen="better", rejected="worse"),
        {"question": "a", "better": "b", "worse": "c", "prompt": 1},
        [{"prompt": "a", "chosen": "b", "rejected": "c"}],
    ),
    # Tokens: labels and masks say what is trained, together if there are several.
    *(
        ("tokenized", Options(), IDS | row, [ids(*flags)])
        for row, flags in (
            ({}, (True, True, True)),
            ({"labels": [5, 6, 7], "seq_start_id": [0]}, (True, True, True)),
            ({"labels": [-100, -100, 7]}, (False, False, True)),
            ({"labels": [-100, -100, -100]}, (False, False, False)),
            ({"loss_mask": [0, 1, 1]}, (False, True, True)),
            ({"completion_mask": [False, True, True]}, (False, True, True)),
            ({"assistant_masks": [0, 1, 1], "completion_mask": [1, 1, 0]}, (False, True, False)),
            ({"labels": [-100, 6, 7], "loss_mask": [1, 1, 0]}, (False, True, False)),
            ({"labels": None, "attention_mask": [1, 1, 1], "seq_lengths": [3]}, (True, True, True)),
        )
    ),
    (
        "tokenized",
        keys(ids="tokens", labels="targets", mask="m"),
        {"tokens": [5, 6], "targets": [5, 6], "m": [0, 1], "loss_mask": 5, "labels": 5},
        [ids(False, True)],
    ),
    ("tokenized", keys(labels="loss_mask"), {"input_ids": [5, 6], "loss_mask": [-100, 6]}, [ids(False, True)]),
    (
        "tokenized",
        PACKED,
        PACKED_ROW,
        [
            ids(False, True),
            {"input_ids": [7], "labels": [7]},
            {"input_ids": [8, 9], "labels": [8, -100]},
        ],
    ),
    ("tokenized", PACKED, PADDED, [ids(False, True), {"input_ids": [8], "labels": [-100]}]),
    # One example a turn
    (
        "messages",
        EACH_TURN,
        {"messages": [USER, ASSISTANT, USER, BAD, USER], "tools": TOOLS},
        [
            PAIR | {"tools": TOOLS},
            {"prompt": [USER, ASSISTANT, USER], "completion": [BAD], "tools": TOOLS},
        ],
    ),
    ("messages", EACH_TURN, {"messages": [USER, USER]}, [{"messages": [USER, USER]}]),
    (
        "messages",
        EACH_TURN,
        {"messages": [USER, ASSISTANT | {"train": False}]},
        [{"prompt": [USER], "completion": [ASSISTANT | {"train": False}]}],
    ),
    (
        "alpaca",
        EACH_TURN,
        HISTORY | {"system": None},
        [
            {"prompt": [user("A")], "completion": [assistant("a")]},
            {"prompt": [user("A"), assistant("a"), user("B")], "completion": [assistant("b")]},
            {
                "prompt": [user("A"), assistant("a"), user("B"), assistant("b"), user("C")],
                "completion": [assistant("c")],
            },
        ],
    ),
    (
        "prompt_completion",
        EACH_TURN,
        {"prompt": [USER, ASSISTANT, USER], "completion": [BAD, USER, ASSISTANT]},
        [
            {"prompt": [USER, ASSISTANT, USER], "completion": [BAD]},
            {"prompt": [USER, ASSISTANT, USER, BAD, USER], "completion": [ASSISTANT]},
        ],
    ),
    (
        "sharegpt",
        EACH_TURN,
        {"conversations": [HUMAN, GPT, HUMAN, GPT], "system": "S"},
        [
            {"prompt": [SYSTEM, USER], "completion": [ASSISTANT]},
            {"prompt": [SYSTEM, USER, ASSISTANT, USER], "completion": [ASSISTANT]},
        ],
    ),
]


def examples(name: str, options: Options, row: Row) -> list[Example]:
    """Of the row as a line of JSON."""
    made = make_format(name, options)
    found = made.prepare([(5, json.dumps(row).encode())])
    assert found.rejects == []
    return list(found.examples)


@pytest.mark.parametrize(("name", "options", "row", "wanted"), CASES)
def test_rows(name: str, options: Options, row: Row, wanted: list[Row]) -> None:
    found = examples(name, options, row)
    assert [public_row(one, "any") for one in found] == wanted
    assert [one.line for one in found] == [5] * len(wanted)
    assert [one.sub for one in found] == (list(range(len(found))) if len(found) > 1 else [-1])
    assert len({one.group for one in found}) == 1


@pytest.mark.parametrize(
    ("name", "row", "wanted"),
    [
        ("messages", {"messages": [USER | {"tool_calls": None}, ASSISTANT], "tools": None}, PAIR),
        ("prompt_completion", {"prompt": [USER | {"name": None}], "completion": [ASSISTANT | {"name": None}]}, PAIR),
        ("sharegpt", {"conversations": [HUMAN | {"weight": None}, GPT], "tools": None}, PAIR),
        (
            "messages",
            {
                "messages": [USER, ASSISTANT | {"content": None, "tool_calls": [{"args": {"a": None, "b": 1}}]}],
                "tools": [{"name": "f", "strict": None}],
            },
            {
                "prompt": [USER],
                "completion": [ASSISTANT | {"content": None, "tool_calls": [{"args": {"b": 1}}]}],
                "tools": [{"name": "f"}],
            },
        ),
    ],
)
def test_the_nulls_of_arrow_are_dropped(name: str, row: Row, wanted: Row) -> None:
    before = json.dumps(row)
    (made,) = make_format(name).prepare_rows([(0, row)]).examples
    assert public_row(made, "any") == wanted
    assert json.dumps(row) == before, "the row itself is left alone"


@pytest.mark.parametrize(("name", "role"), [*ROLES.items(), (" Human ", "user"), ("GPT", "assistant")])
def test_every_name_of_a_role(name: str, role: str) -> None:
    turn = {"from": name, "value": '{"name": "f", "arguments": {}}'}
    (made,) = examples("sharegpt", Options(), {"conversations": [turn, HUMAN]})
    assert isinstance(made.prompt, list)
    assert made.prompt[0]["role"] == role


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        *(({"seq_lengths_unpadded": one}, "bad_lengths") for one in ([2, 1], [2, 3, 0], [2, -1, 0], [0, 0, 0])),
        ({"loss_weights": [0, 0.5, 0, 0, 0, 0]}, "weight"),
    ],
)
def test_packed_rows_that_are_refused(more: Row, reason: str) -> None:
    done = make_format("tokenized", PACKED).prepare_rows([(0, PADDED | more)])
    assert [one[1] for one in done.rejects] == [reason]


@pytest.mark.parametrize("row", [{"prompt": ""}, {"prompt": []}])
def test_an_empty_prompt_alone_is_refused(row: Row) -> None:
    only = make_format("prompt_completion", Options(prompt_only=True))
    assert [reason for _, reason, _ in only.prepare_rows([(0, row)]).rejects] == ["empty"]
    assert only.form == "prompt"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("messages", {"messages": [USER, ASSISTANT, USER]}),
        ("messages", {"messages": [USER, ASSISTANT], "tools": TOOLS}),
        ("prompt_completion", PAIR),
        ("text", {"text": "a"}),
        ("preference", LIKED),
        ("tokenized", {"input_ids": [3, 4], "labels": [-100, 4]}),
    ],
)
def test_a_public_row_read_back_is_itself(name: str, row: Row) -> None:
    (made,) = examples(name, Options(), row)
    assert public_row(made, make_format(name).form) == row


@pytest.mark.parametrize("style", ["chat", "classic"])
def test_apps_in_public_are_prompts_and_completions(style: Any) -> None:
    apps = make_format("apps", Options(style=style))
    made = examples("apps", apps.options, {"question": "q", "solutions": ["a", "b"]})
    again = [one for each in made for one in examples("prompt_completion", Options(), public_row(each, apps.form))]
    assert [one[3:5] for one in again] == [one[3:5] for one in made]
    assert len(made) == 2
