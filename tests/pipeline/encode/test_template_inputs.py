"""What a row hands to the chat template beside messages and tools: variables and documents, as in TRL."""

from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tests import kit
from tests.kit import Row

TEMPLATE = (
    "{{ '<s>' }}{% if effort is defined %}{{ '[' + effort + ']' }}{% endif %}"
    "{% for d in documents or [] %}{{ '(' + d.title + ')' }}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and loop.last and think is false %}{{ '<think></think>' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if think is false %}{{ '<think></think>' }}{% endif %}{% endif %}"
)
MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
ROWS: list[Row] = [
    {"messages": MESSAGES},
    {"messages": MESSAGES, "chat_template_kwargs": {"think": False, "other": 1}},
    {"messages": MESSAGES, "chat_template_kwargs": {"effort": "high", "think": None}},
    {"messages": MESSAGES, "documents": [{"title": "T", "text": "x"}, {"title": "U"}]},
    {"messages": MESSAGES, "chat_template_kwargs": {"documents": [{"title": "V"}], "think": False}},
    {"messages": MESSAGES},
]


def packed(folder: Path, rows: list[Row], name: str = "chats.jsonl", **keys: Any) -> kit.Packed:
    kit.tokenizer(folder / "tokenizer")
    kit.write(folder / name, rows)
    tokenizer = {"path": str(folder / "tokenizer"), "chat_template": TEMPLATE, **keys.pop("tokenizer", {})}
    config = {"mask": "assistant", "pack": {"strategy": "none", "shuffle": False}, "tokenizer": tokenizer, **keys}
    return kit.packed(kit.configure(folder, {"name": "chats", "path": name}, **config))


def shown(folder: Path, dataset: kit.Packed) -> list[tuple[str, str]]:
    """The text of each row, and what is trained of it."""
    decode = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json")).decode
    return [
        (
            decode(row["input_ids"], skip_special_tokens=False),
            decode([label for label in row["labels"] if label >= 0], skip_special_tokens=False),
        )
        for row in dataset.rows()
    ]


@pytest.mark.parametrize("variables", [{}, {"effort": "low", "think": True}])
def test_rows_are_rendered_with_their_own_variables_which_win(tmp_path: Path, variables: Row) -> None:
    dataset = packed(tmp_path, ROWS, tokenizer={"variables": variables})
    compiled = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)
    expected = []
    for row in ROWS:
        own = {key: value for key, value in row.get("chat_template_kwargs", {}).items() if value is not None}
        given = {"documents": row.get("documents"), **variables, **own}
        expected.append((compiled.render(messages=MESSAGES, **given), "a<|im_end|>"))
    assert shown(tmp_path, dataset) == expected
    assert any("not read: chat_template_kwargs.other" in note for note in dataset.notes)
    backwards = packed(tmp_path, ROWS[::-1], out=str(tmp_path / "backwards"), tokenizer={"variables": variables})
    assert shown(tmp_path, backwards) == expected[::-1]


def test_documents_must_reach_the_text(tmp_path: Path) -> None:
    lost = {"messages": MESSAGES, "documents": [{"title": "", "text": "nowhere"}]}
    dataset = packed(tmp_path, [*ROWS, lost])
    (reject,) = dataset.rejects()
    assert reject["reason"] == "lost_content"
    assert "document 1 of the row" in reject["detail"]
    allowed = packed(tmp_path, [*ROWS, lost], out=str(tmp_path / "allowed"), tokenizer={"allow_lost": ["documents"]})
    assert allowed.ledger["chats"]["template_dropped"] == {"documents": 1}


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"chat_template_kwargs": {"add_generation_prompt": True}}, "unusable_column"),
        ({"chat_template_kwargs": {"tools": []}}, "unusable_column"),
        ({"chat_template_kwargs": [1]}, "wrong_type"),
        ({"chat_template_kwargs": {"documents": [{"title": "a"}]}, "documents": [{"title": "b"}]}, "unusable_column"),
        ({"documents": ["a.pdf"]}, "wrong_type"),
    ],
)
def test_what_a_row_cannot_decide_is_refused(tmp_path: Path, inputs: Row, reason: str) -> None:
    dataset = packed(tmp_path, [*ROWS, {"messages": MESSAGES, **inputs}])
    assert [reject["reason"] for reject in dataset.rejects()] == [reason]
