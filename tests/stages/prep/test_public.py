"""Examples as other tools read them; read back, they are the same examples."""

import json
from typing import Any

import pytest
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options, make_format, public_row

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}
TOOLS = [{"name": "f"}]


def test_the_forms() -> None:
    pair = Example(0, -1, "", [USER], [ASSISTANT], None, None)
    assert public_row(pair, "prompt_completion") == {"prompt": [USER], "completion": [ASSISTANT]}
    assert public_row(pair, "prompt") == {"prompt": [USER]}
    assert public_row(pair, "messages") == {"messages": [USER, ASSISTANT]}
    assert public_row(Example(0, -1, "", None, None, "x"), "text") == {"text": "x"}
    liked = pair._replace(rejected=[USER])
    assert public_row(liked, "preference") == {"prompt": [USER], "chosen": [ASSISTANT], "rejected": [USER]}
    ids = Example(0, -1, "", None, None, None, ids=[5, 6], trained=[False, True])
    assert public_row(ids, "tokenized") == {"input_ids": [5, 6], "labels": [-100, 6]}
    assert public_row(ids._replace(trained=None), "any") == {"input_ids": [5, 6], "labels": [5, 6]}
    assert public_row(liked, "any") == public_row(liked, "preference")
    assert public_row(pair, "any") == public_row(pair, "prompt_completion")
    assert public_row(pair._replace(completion=[]), "any") == {"messages": [USER]}
    assert public_row(Example(0, -1, "", None, None, "x"), "any") == {"text": "x"}
    with_tools = pair._replace(tools=TOOLS)
    assert public_row(with_tools, "messages") == {"messages": [USER, ASSISTANT], "tools": TOOLS}
    assert public_row(with_tools, "prompt")["tools"] == TOOLS


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("messages", {"messages": [USER, ASSISTANT, USER]}),
        ("messages", {"messages": [USER, ASSISTANT], "tools": TOOLS}),
        ("prompt_completion", {"prompt": "a", "completion": "b"}),
        ("prompt_completion", {"prompt": [USER], "completion": [ASSISTANT]}),
        ("text", {"text": "a"}),
        ("preference", {"prompt": "a", "chosen": "b", "rejected": "c"}),
        ("preference", {"prompt": [USER], "chosen": [ASSISTANT], "rejected": [USER]}),
        ("tokenized", {"input_ids": [3, 4], "labels": [-100, 4]}),
    ],
)
def test_a_public_row_read_back_is_itself(name: str, row: dict[str, Any]) -> None:
    made = make_format(name)
    (example,) = made.prepare([(0, json.dumps(row).encode())]).examples
    assert public_row(example, made.form) == row


@pytest.mark.parametrize("style", ["chat", "classic"])
def test_apps_in_public_are_prompts_and_completions(style: Any) -> None:
    apps = make_format("apps", Options(style=style))
    line = json.dumps({"question": "q", "solutions": ["a", "b"]}).encode()
    made = apps.prepare([(0, line)]).examples
    written = [(0, json.dumps(public_row(example, apps.form)).encode()) for example in made]
    again = make_format("prompt_completion").prepare(written).examples
    assert [e[3:5] for e in again] == [e[3:5] for e in made]
    assert len(made) == 2


def test_only_prompts_in_public() -> None:
    apps = make_format("apps", Options(prompt_only=True, style="classic"))
    (example,) = apps.prepare([(0, b'{"question": "q"}')]).examples
    assert list(public_row(example, apps.form)) == ["prompt"]
    assert make_format("prompt_completion", Options(prompt_only=True)).form == "prompt"
    assert make_format("text", Options()).form == "text"
