"""Trainers that do not know rows whose documents share tokens, or are in pairs, find no columns, and train nothing."""

import warnings
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, DataCollatorWithFlattening, Trainer, TrainingArguments

from tests import kit
from tests.support.small_models import write_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Turns of chats that share tokens, pairs that share prompts, pairs that do not, and a model with its tokenizer."""
    root = tmp_path_factory.mktemp("shared")
    kit.write(root / "chats.jsonl", kit.corpus("chats", 12))
    kit.write(root / "choices.jsonl", kit.corpus("choices", 12))
    turns = kit.source("chats", expand="per_turn")
    shared = {"pack": {"share": "row"}, "truncate": {"max_length": 512}}
    chats = kit.packed(kit.configure(root, turns, out=str(root / "turns"), **shared))
    pairs = kit.packed(kit.configure(root, "choices", out=str(root / "pairs"), **shared))
    for dataset in (chats, pairs):
        assert any(any(row["branch_parents"]) for row in dataset.rows())
    whole = kit.packed(kit.configure(root, "choices", out=str(root / "whole-pairs"), truncate={"max_length": 512}))
    for dataset in (chats, pairs, whole):
        rows = datasets.load_from_disk(str(dataset.folder))
        assert not {"input_ids", "labels", "position_ids", "seq_lengths"} & set(rows.column_names)
    return {
        "turns": chats.folder,
        "pairs": pairs.folder,
        "whole pairs": whole.folder,
        "model": write_model(root / "model"),
    }


def check_nothing_is_trained(trainer: Any, error: type[Exception] | tuple[type[Exception], ...], message: str) -> None:
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    with pytest.raises(error, match=message):
        trainer.train()
    assert all(torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())


@pytest.mark.parametrize("data", ["turns", "pairs", "whole pairs"])
@pytest.mark.parametrize(
    ("collator", "keeps_columns", "message"),
    [
        ("default", False, "No columns in the dataset match the model's forward method signature"),
        ("default", True, "exactly one of input_ids or inputs_embeds"),
        ("flattening", True, "input_ids"),
        ("padding", True, "input_ids"),
    ],
)
def test_transformers_trainer(
    folders: dict[str, Path], data: str, collator: str, keeps_columns: bool, message: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folders["model"])
    collators = {
        "default": None,
        "flattening": DataCollatorWithFlattening(),
        "padding": DataCollatorForSeq2Seq(tokenizer),
    }
    arguments = TrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=1, max_steps=1, use_cpu=True, report_to=[],
        remove_unused_columns=not keeps_columns, disable_tqdm=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folders["model"])
    rows = datasets.load_from_disk(str(folders[data]))
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=collators[collator])
    check_nothing_is_trained(trainer, (ValueError, KeyError), message)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["turns", "pairs", "whole pairs"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding_free": True, "max_length": None},
        {"packing": True, "max_length": 512},
        {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None},
        {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None, "remove_unused_columns": False},
    ],
)
def test_trl(folders: dict[str, Path], data: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Its trainer refuses the rows as soon as it is made, or with its first batch."""
    trl = pytest.importorskip("trl")
    arguments = trl.SFTConfig(
        str(tmp_path / "out"), per_device_train_batch_size=1, max_steps=1, use_cpu=True, report_to=[], bf16=False,
        disable_tqdm=True, **options,
    )  # fmt: skip
    rows = datasets.load_from_disk(str(folders[data]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((KeyError, ValueError), match=r"text|No columns in the dataset|input_ids"):
            _train(trl, folders["model"], arguments, rows)


def _train(trl: Any, model: Path, arguments: Any, rows: Any) -> None:
    trl.SFTTrainer(str(model), args=arguments, train_dataset=rows).train()
