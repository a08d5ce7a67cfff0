"""The arguments of tool calls reach a template as a server would hand them over."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests import kit
from tests.kit import Row

OPEN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + '[' + "
)
CLOSE = " + ']' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
GIVEN = "c.function.arguments"
TEMPLATES = {
    "as JSON": (OPEN + f"({GIVEN} | tojson)" + CLOSE, "object"),
    "its items": (OPEN + f"({GIVEN} | items | list | tojson)" + CLOSE, "object"),
    "either": (OPEN + f"({GIVEN} if {GIVEN} is string else ({GIVEN} | tojson))" + CLOSE, "object"),
    "joined": (OPEN + GIVEN + CLOSE, "text"),
    "printed": (OPEN + f"'' ~ {GIVEN}" + CLOSE, "text"),
}
OBJECT = {"a": "zwölf", "b": [1, None, 2.5]}
TEXT = json.dumps(OBJECT, ensure_ascii=False)


def conversation(arguments: Any) -> Row:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {"messages": messages}


def packed(folder: Path, template: str, *arguments: Any, **tokenizer: Any) -> kit.Packed:
    """A dataset of one conversation for each of the arguments."""
    kit.tokenizer(folder / "tokenizer")
    kit.write(folder / "chats.jsonl", [conversation(one) for one in arguments])
    return kit.packed(
        kit.configure(
            folder,
            kit.source("chats"),
            tokenizer={"path": str(folder / "tokenizer"), "chat_template": template, **tokenizer},
            pack={"strategy": "none", "shuffle": False},
            mask="all",
            truncate={"max_length": 1 << 14},
        )
    )


def calls(folder: Path, dataset: kit.Packed) -> list[str]:
    """What stands between the brackets of each row."""
    decode = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json")).decode
    texts = [decode(row["input_ids"], skip_special_tokens=False) for row in dataset.rows()]
    return [text[text.index("[") + 1 : text.rindex("]")] for text in texts]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_text_and_its_object_are_one_call(tmp_path: Path, name: str) -> None:
    """As vLLM's `_postprocess_messages` and SGLang's `_apply_jinja_template` hand it over, where the template takes
    objects; where it takes only text, it is the text, and the run says so."""
    template, form = TEMPLATES[name]
    dataset = packed(tmp_path, template, OBJECT, TEXT)
    as_object, as_text = calls(tmp_path, dataset)
    assert as_object == as_text
    assert json.loads(as_text) == (list(map(list, OBJECT.items())) if name == "its items" else OBJECT)
    assert any("only as text" in note for note in dataset.notes) == (form == "text")
    assert dataset.record["plan"]["encode"]["call_arguments"] == form


def test_as_given(tmp_path: Path) -> None:
    dataset = packed(tmp_path, TEMPLATES["as JSON"][0], OBJECT, TEXT, call_arguments="as_given")
    assert calls(tmp_path, dataset) == [TEXT, json.dumps(TEXT, ensure_ascii=False)]


@pytest.mark.parametrize(
    "arguments", ["{", "[1]", "5", '"{}"', '{"a": NaN}', '{"a": "\\ud800"}', '{"a": ' * 200 + "1" + "}" * 200, "   "]
)
def test_arguments_that_are_no_json_stay_text_and_are_counted(tmp_path: Path, arguments: str) -> None:
    dataset = packed(tmp_path, TEMPLATES["as JSON"][0], arguments, TEXT)
    assert calls(tmp_path, dataset) == [json.dumps(arguments, ensure_ascii=False), TEXT]
    assert dataset.ledger["chats"]["call_arguments_not_json"] == 1
    assert any("1 tool call" in note and "line 1" in note for note in dataset.notes)


def test_no_arguments_are_an_empty_object(tmp_path: Path) -> None:
    dataset = packed(tmp_path, TEMPLATES["as JSON"][0], "", None, {})
    assert calls(tmp_path, dataset) == ["{}"] * 3
    assert dataset.ledger["chats"]["call_arguments_not_json"] == 0
