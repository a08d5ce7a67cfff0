"""The format is detected, or the error says what was examined and how to name the format."""

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.tables.row_formats import ROW_FORMATS
from packtrain.stages.prep import FORMATS
from packtrain.stages.prep.detect import detect

ROOT = os.environ.get("PACKTRAIN_REALDATA")
USER = {"role": "user", "content": "Hi"}
HUMAN = {"from": "human", "value": "Hi"}

ROWS: list[tuple[Any, str, dict[str, str]]] = [
    ({"messages": [USER]}, "messages", {}),
    ({"messages": [USER], "prompt": "Hi", "prompt_id": "1", "text": "<s>Hi"}, "messages", {}),
    ({"conversations": [USER]}, "messages", {"messages": "conversations"}),
    ({"conversation": [USER], "model": "m"}, "messages", {"messages": "conversation"}),
    ({"conversations": [HUMAN]}, "sharegpt", {}),
    ({"messages": [HUMAN]}, "sharegpt", {"conversations": "messages"}),
    ({"instruction": "a", "input": "", "output": "b", "text": "c"}, "alpaca", {}),
    ({"prompt": "a", "completion": "b"}, "prompt_completion", {}),
    ({"prompt": [USER], "completion": [USER]}, "prompt_completion", {}),
    ({"prompt": "a", "chosen": "b", "rejected": "c", "score": 1.0}, "preference", {}),
    ({"prompt": "a", "chosen": [USER], "rejected": [USER]}, "preference", {}),
    ({"chosen": [USER], "rejected": [USER]}, "preference", {}),
    ({"input_ids": [1, 2], "attention_mask": [1, 1], "labels": [1, 2]}, "tokenized", {}),
    ({"text": "a", "id": 5}, "text", {}),
    ({"question": "a", "solutions": "", "input_output": "", "difficulty": "interview"}, "apps", {}),
]


@pytest.mark.parametrize(("row", "format", "keys"), ROWS)
def test_each_format(row: Any, format: str, keys: dict[str, str]) -> None:
    for count in (1, 3):
        found = detect([row] * count)
        assert (found.format, found.keys) == (format, keys)


def test_every_format_but_a_persons_own_is_looked_for() -> None:
    assert {format for _, format, _ in ROWS} == set(ROW_FORMATS) == set(FORMATS) - {"python"}


@pytest.mark.parametrize(
    ("row", "keys", "format"),
    [
        ({"question": "a", "answer": "b"}, {"prompt": "question", "completion": "answer"}, "prompt_completion"),
        ({"body": "a", "messages": [USER]}, {"text": "body"}, "text"),
        ({"tokens": [1], "messages": [USER]}, {"input_ids": "tokens"}, "tokenized"),
        ({"log": [HUMAN]}, {"conversations": "log"}, "sharegpt"),
        ({"messages": [USER], "functions": []}, {"tools": "functions"}, "messages"),
    ],
)
def test_keys_say_what_is_looked_for(row: Any, keys: dict[str, str], format: str) -> None:
    found = detect([row], keys)
    assert (found.format, found.keys) == (format, keys)


def refusal(rows: list[Any]) -> str:
    with pytest.raises(ConfigError, match="fit no format") as refused:
        detect(rows)
    return str(refused.value)


def test_a_typing_error_in_a_column_is_named() -> None:
    said = refusal([{"mesages": [USER]}])
    assert "Is `mesages` meant as `messages`? Then say keys: {messages: mesages} (as an option: " in said
    assert "--set sources.0.keys.messages=mesages)." in said
    completion = "Is `complation` meant as `completion`? Then say keys: {completion: complation} (as an option: "
    assert completion in refusal([{"prompt": "a", "complation": "b"}])
    assert "meant as" not in refusal([{"body": "a"}])


def test_a_typing_error_in_a_message_is_shown() -> None:
    said = refusal([{"messages": [{"rol": "user", "content": "Hi"}]}])
    assert "The objects of `messages` have `rol`, `content`." in said
    assert "The objects" not in refusal([{"messages": "Hi"}])


def test_rows_of_several_formats_are_counted() -> None:
    """A third each, of which none is half."""
    rows = [{"messages": [USER]}, {"prompt": "a", "completion": "b"}, {"text": "c"}] * 5
    said = refusal(rows)
    assert "Of these rows, 5 have `messages`, a list of objects with `role`, 5 have `prompt` and `completion`," in said
    assert "5 have `text`, a text: rows of each format belong in a file, and a source, of their own." in said
    assert "The objects of" not in said, "they are as they should be"
    assert "Of these rows" not in refusal([{"body": "a"}] * 5)


def test_a_few_odd_rows_do_not_decide() -> None:
    rows: list[Any] = [{"messages": [USER]}] * 97 + [{"text": "a"}, {"messages": []}, None]
    found = detect(rows)
    assert (found.format, found.why.split()[0]) == ("messages", "97")
    with pytest.raises(ConfigError, match="no format"):
        detect([{"messages": [USER]}] * 2 + [{"a": 1}] * 3)


REAL = {
    "apps/train.jsonl": "apps",
    "apps/test.jsonl": "apps",
    "apps/leetcode_apps_schema.jsonl": "apps",
    "chat/gsm8k_train.jsonl": "messages",
    "chat/oasst_en100_paths.jsonl": "messages",
    "chat/sgd_dev.jsonl": "messages",
    "chat/tau_bench_gpt4o_airline.jsonl": "messages",
    "longdoc/qmsum_meeting_qa.jsonl": "messages",
    "longdoc/peps.jsonl": "text",
    "preference/dpo_pairs.jsonl": "preference",
}


@pytest.mark.skipif(not ROOT, reason="PACKTRAIN_REALDATA names no folder")
def test_every_file_of_the_real_data() -> None:
    root = Path(ROOT or "")
    for name, format in REAL.items():
        with (root / name).open(encoding="utf-8") as file:
            found = detect([json.loads(line) for line in islice(file, 200)])
        assert (found.format, found.keys) == (format, {}), name
        assert found.why.startswith("all of "), name
