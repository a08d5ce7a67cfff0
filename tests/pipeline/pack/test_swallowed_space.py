"""Tokens that swallow the white space beside them (`rstrip`, `lstrip`, as Phi's do) are trained for their own text."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import kit
from tests.kit import Packed, Row

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
NAMES = ("<|user|>", "<|assistant|>", "<|end|>")
CONTENTS = ("plain", "  indented\n", "\n\nx", "ends ", " both ", " é\u0301 ")


@pytest.fixture(params=[("rstrip",), ("lstrip",), ("lstrip", "rstrip")], ids="+".join)
def folder(request: Any, tmp_path: Path) -> Path:
    """Where a tokenizer with such tokens lies."""
    place = kit.tokenizer(tmp_path / "tokenizer", special=NAMES) / "tokenizer.json"
    saved = json.loads(place.read_text())
    for token in saved["added_tokens"]:
        token |= dict.fromkeys(request.param, token["content"] in NAMES)
    place.write_text(json.dumps(saved))
    return tmp_path


def packed(folder: Path, kind: str, rows: list[Row], mask: Any = None) -> Packed:
    kit.write(folder / "rows.jsonl", rows)
    config = kit.configure(
        folder,
        {"name": "rows", "path": str(folder / "rows.jsonl"), **({"format": kind} if kind else {})},
        out=str(folder / f"out-{mask}"),
        tokenizer={"path": str(folder / "tokenizer"), "chat_template": TEMPLATE},
        pack={"strategy": "none", "shuffle": False},
        **({"mask": mask} if mask else {}),
    )
    return kit.packed(config)


def decode(folder: Path, ids: list[int]) -> list[str | None]:
    """The tokens as they stand in the vocabulary."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    return [tokenizer.id_to_token(one) for one in ids]


@pytest.mark.parametrize("mask", ["assistant", "last_assistant", "completion"])
def test_no_header_is_trained(folder: Path, mask: str) -> None:
    rows: list[Row] = [
        {"messages": [{"role": role, "content": text} for role in ("user", "assistant") * 2]} for text in CONTENTS
    ]
    result = packed(folder, "messages", rows, mask)
    assert len(result.rows()) == len(CONTENTS)
    for row in result.rows():
        trained = decode(folder, [label for label in row["labels"] if label >= 0])
        assert not {"<|user|>", "<|assistant|>"} & set(trained)
        assert trained.count("<|end|>") == (2 if mask == "assistant" else 1)
    assert not result.ledger["rows"]["straddles"]


def test_no_header_of_a_plain_prompt_is_trained(folder: Path) -> None:
    rows: list[Row] = [
        {"prompt": f"<|user|>\nq<|end|>\n<|assistant|>{before}", "completion": f"{after}x<|end|>"}
        for before, after in (("\n", "  "), ("", "\n"), ("\n", "x"), (" ", ""))
    ]
    for row in packed(folder, "prompt_completion", rows).rows():
        trained = decode(folder, [label for label in row["labels"] if label >= 0])
        assert "<|assistant|>" not in trained
        assert trained[-2:] == ["<|end|>", "<|im_end|>"] or trained[-1] == "<|end|>"


def test_no_header_stands_in_a_completion_of_a_pair(folder: Path) -> None:
    head = "<|user|>\nq<|end|>\n<|assistant|>"
    rows: list[Row] = [
        {"prompt": head, "chosen": f"{blank}yes<|end|>", "rejected": f"{blank}no<|end|>"} for blank in ("\n", " ")
    ]
    for row in packed(folder, "preference", rows).rows():
        assert "<|assistant|>" in decode(folder, row["prompt_ids"])
        assert "<|assistant|>" not in decode(folder, row["chosen_ids"] + row["rejected_ids"])
