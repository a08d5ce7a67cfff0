"""docs/images shows what the code does. PACKTRAIN_REWRITE_DOCS=1 draws the pictures again."""

import json
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import packtrain
import pytest
from packtrain.pipeline.dataset.open import open_dataset

from tests.docs import pictures

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DEMO = Path(str(files("packtrain.pipeline.demo") / "tokenizer"))
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Plus 3?"},
    {"role": "assistant", "content": "7"},
]
THOUGHTS = """{%- set ns = namespace(last=0) -%}
{%- for message in messages if message.role == 'user' -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set content = message.content -%}
{%- set thought = '' -%}
{%- if message.role == 'assistant' and '</think>' in content -%}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' and loop.index0 > ns.last -%}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}"""
"""A template that treats thoughts as Qwen3's does: the last turn has a block of them, earlier turns lose theirs."""

Look = Callable[..., tuple[str, list[bool]]]
"""`look(messages, **keys)`: the text of the one packed document, and for each character whether it is trained."""


@pytest.fixture
def look(tmp_path: Path) -> Look:
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    taken = iter(range(100))

    def run(
        messages: list[dict[str, Any]], tokenizer: dict[str, Any] | None = None, **keys: Any
    ) -> tuple[str, list[bool]]:
        folder = tmp_path / str(next(taken))
        folder.mkdir()
        (folder / "chat.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
        config = {
            "out": str(folder / "packed"),
            "cache": str(tmp_path / "cache"),
            "tokenizer": {"path": str(DEMO)} | (tokenizer or {}),
            "sources": [{"name": "chat", "format": "messages", "path": str(folder / "chat.jsonl")}],
            "run": {"workers": 1},
        }
        packtrain.run(config | keys)
        row = only_row(folder / "packed")
        text, trained = "", []
        for token, label in zip(row["input_ids"], row["labels"], strict=True):
            piece = reference.decode([token], skip_special_tokens=False)
            text += piece
            trained += [label == token] * len(piece)
        return text, trained

    return run


def only_row(out: Path) -> dict[str, Any]:
    dataset = open_dataset(out)
    assert dataset.manifest.splits["train"].rows == 1
    row: dict[str, Any] = dataset.row(0).to_pylist()[0]
    return row


def check(name: str, drawn: str) -> None:
    path = IMAGES / name
    if os.environ.get("PACKTRAIN_REWRITE_DOCS"):
        path.write_text(drawn, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == drawn, f"{name}: PACKTRAIN_REWRITE_DOCS=1 draws it again"


@pytest.mark.slow
def test_policies(look: Look) -> None:
    columns = []
    for policy in ("completion", "assistant", "last_assistant", "all"):
        text, trained = look(CHAT, mask=policy)
        columns.append(pictures.Column(policy, trained))
    assert len({tuple(column.trained) for column in columns}) == 4
    check("mask-policies.svg", pictures.masks("One conversation under the four mask policies", text, columns))


@pytest.mark.slow
def test_flags_and_ends(look: Look) -> None:
    flagged: list[dict[str, Any]] = [dict(message) for message in CHAT]
    flagged[2]["train"] = False
    text, plain = look(CHAT, mask="assistant")
    same, without = look(flagged, mask="assistant")
    again, endless = look(CHAT, mask={"policy": "assistant", "train_end": False})
    assert text == same == again
    columns = [
        pictures.Column("assistant", plain),
        pictures.Column("4: train: false", without),
        pictures.Column("train_end: false", endless),
    ]
    check(
        "mask-flags.svg",
        pictures.masks("The policy assistant with a message taken out, and without ends", text, columns),
    )


@pytest.mark.slow
def test_thoughts(look: Look) -> None:
    chat = [dict(message) for message in CHAT[1:]]
    chat[1]["content"] = "<think>\nTwo pairs.\n</think>\n\n4"
    template = {"chat_template": THOUGHTS}
    text, plain = look(chat, template, mask="assistant")
    same, without = look(chat, template | {"variables": {"enable_thinking": False}}, mask="assistant")
    assert text == same
    assert "Two pairs" not in text
    columns = [pictures.Column("assistant", plain), pictures.Column("enable_thinking: false", without)]
    check(
        "mask-thoughts.svg",
        pictures.masks("A template that leaves out thoughts and adds an empty block", text, columns),
    )


@pytest.mark.slow
def test_packed_row(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    (tmp_path / "pairs.jsonl").write_text(
        '{"prompt": "2 + 2 =", "completion": " 4"}\n{"prompt": "1 - 1 =", "completion": " 0"}\n'
    )
    source = {"name": "sums", "format": "prompt_completion", "path": str(tmp_path / "pairs.jsonl")}
    packtrain.run(
        {"out": str(tmp_path / "packed"), "tokenizer": {"path": str(DEMO)}, "sources": [source], "run": {"workers": 1}}
    )
    row = only_row(tmp_path / "packed")
    documents, at = [], 0
    for length in row["seq_lengths"]:
        here = slice(at, at + length)
        tokens = zip(row["input_ids"][here], row["labels"][here], row["position_ids"][here], strict=True)
        documents.append([
            pictures.Token(
                reference.decode([token], skip_special_tokens=False),
                "−100" if label == -100 else reference.decode([label], skip_special_tokens=False),
                position,
            )
            for token, label, position in tokens
        ])  # fmt: skip
        at += length
    check("packed-row.svg", pictures.packed_row("A packed row of two documents", documents))


def test_planning() -> None:
    lengths = np.array([4, 6, 3, 1, 6, 3, 4, 6, 3, 3, 1])
    steps = []
    for length in sorted({int(one) for one in lengths}, reverse=True):
        longer = lengths[lengths >= length]
        plan = packtrain.plan_rows(longer, 10)
        cuts = plan.row_offsets.tolist()
        parts = [plan.lengths[a:b].tolist() for a, b in pairwise(cuts)]
        steps.append(pictures.Step(length, int((lengths == length).sum()), parts))
    check("planning.svg", pictures.planning("Best-fit-decreasing by classes, rows of 10", 10, steps))


def test_pictures_are_shown_and_told() -> None:
    """Each picture is on a page with alternative text, is XML, says itself in words, and asks for nothing."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in IMAGES.parent.glob("*.md"))
    found = sorted(IMAGES.glob("*.svg"))
    assert len(found) >= 5
    for path in found:
        assert re.search(rf"!\[[^\]]{{20,}}\]\(images/{re.escape(path.name)}\)", pages), path.name
        root = ET.parse(path).getroot()
        names = {child.tag.rpartition("}")[2]: child for child in root}
        assert names["title"].text
        assert len(names["desc"].text or "") > 100
        text = path.read_text(encoding="utf-8")
        assert "href" not in text
        assert "url(" not in text
        assert len(text) < 40_000
