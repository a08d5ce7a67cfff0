"""What is trained under the chat templates that TRL ships: real conversations, each against a record.

Rows are conversations of GSM8K, OASST, SGD (tools) and tau-bench (calls and their results), and two with thoughts; one
document a row, so that a digest covers the ids and labels of each. Rejected rows are counted by reason.

`masks.json` is recorded as `golden.json` is: `PACKTRAIN_RECORD=1 python -m pytest tests/golden`.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from packtrain import PacktrainError

from tests import kit
from tests.kit import Config, Row

RECORD = Path(__file__).with_name("masks.json")
RECORDS = bool(os.environ.get("PACKTRAIN_RECORD"))
_TRL = find_spec("trl")
FOLDER = Path(_TRL.origin or "").parent / "chat_templates" if _TRL is not None else Path("absent")
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
QUICK = ("qwen3", "qwen2_5", "llama3", "gemma3", "gemma4_v2", "deepseekv3", "glm4moe", "phi3", "gptoss", "cohere2")
MASKS: dict[str, Any] = {
    "completion": "completion",
    "assistant": "assistant",
    "last": "last_assistant",
    "all": "all",
    "parts": {"policy": "assistant", "thoughts": "mask", "tool_calls": "mask", "train_end": False, "stop": "auto"},
}
FEW = ("parts",)
"""Of the templates beyond the quick ones, which have all masks."""
SPECIAL = (
    *("<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<eos>", "<bos>"),
    *("<end_of_turn>", "<start_of_turn>", "</s>", "<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"),
    *("<|message|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "<｜end▁of▁sentence｜>"),
    *("<｜User｜>", "<｜Assistant｜>", "<|turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"),
    *("<end_of_utterance>", "<think>", "</think>"),
)
"""Tokens with which the templates begin and end turns."""


def _conversations(realdata: Path) -> Iterator[Row]:
    """34 real rows."""
    for name in ("gsm8k_train", "oasst_en100_paths", "sgd_dev", "tau_bench_gpt4o_airline"):
        with (realdata / "chat" / f"{name}.jsonl").open(encoding="utf-8") as lines:
            for line in islice(lines, 8):
                row = json.loads(line)
                yield {key: row[key] for key in ("messages", "tools") if row.get(key)}
    asked = {"role": "user", "content": "2+2?"}
    yield {"messages": [asked, {"role": "assistant", "content": "4", "reasoning_content": "Add them."}]}
    yield {"messages": [asked, {"role": "assistant", "content": "<think>\nAdd them.\n</think>\n\n4"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, realdata: Path) -> Path:
    """Where the conversations and the tokenizer lie."""
    made = tmp_path_factory.mktemp("masks")
    kit.write(made / "chats.jsonl", list(_conversations(realdata)))
    kit.tokenizer(made / "tokenizer", special=SPECIAL)
    return made


@pytest.fixture(scope="module")
def recorded() -> Config:
    """The records by template."""
    known: Config = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return known


def _found(name: str, folder: Path) -> Config:
    """By mask: the digest of the rows, how many tokens are trained, and how many rows were refused, by reason."""
    found: Config = {}
    for mask in MASKS if name in QUICK else FEW:
        config = kit.configure(
            folder,
            kit.source("chats"),
            out=str(folder / f"{name}-{mask}"),
            tokenizer={
                "path": str(folder / "tokenizer"),
                "chat_template": str(FOLDER / f"{name}.jinja"),
                "date": "2024-07-26",
                "allow_lost": ["system", "assistant", "tool_calls", "tool_results", "tools"],
                "call_arguments": "as_given",  # recorded with the text that the rows have
            },
            mask=MASKS[mask],
            truncate={"max_length": 1 << 17},
            pack={"strategy": "none", "shuffle": False},
        )
        try:
            packed = kit.packed(config, base=folder)
        except PacktrainError as error:
            found[mask] = type(error).__name__
            continue
        trained = sum(label != -100 for row in packed.rows() for label in row["labels"])
        found[mask] = [packed.digest(), trained, dict(sorted(Counter(r["reason"] for r in packed.rejects()).items()))]
    return found


@pytest.mark.parametrize(
    "name", [one if one in QUICK[::4] else pytest.param(one, marks=pytest.mark.slow) for one in TEMPLATES]
)
def test_labels(name: str, folder: Path, recorded: Config) -> None:
    found = json.loads(json.dumps(_found(name, folder)))
    if RECORDS:
        recorded[name] = found
        body = ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in sorted(recorded.items()))
        RECORD.write_text(f"{{\n{body}\n}}\n")
    assert found == recorded[name]


def test_most_conversations_are_trained(recorded: Config) -> None:
    """The records are of use: under most templates, most turns are found."""
    assert len(recorded) >= 70
    whole = [name for name, one in recorded.items() if isinstance(one["parts"], list) and one["parts"][1] > 0]
    assert len(whole) >= 60
