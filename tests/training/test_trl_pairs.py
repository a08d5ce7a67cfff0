"""A step of TRL's DPOTrainer on pairs that are not packed, and of transformers' Trainer, against packed rows."""

import copy
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from packtrain.training import (
    PackedLoader,
    collate,
    document_logps,
    predicting_positions,
    preference_loss,
    reference_logps,
    use_packed,
)

from tests import kit
from tests.training.trainer.tiny_models import make

TRL_KINDS = {"dpo": "sigmoid", "ipo": "ipo"}
PAIRS = 6
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same pairs, by the strategy that packed them, or did not."""
    root = tmp_path_factory.mktemp("six")
    kit.write(root / "choices.jsonl", kit.corpus("choices", PAIRS))
    config = kit.configure(root, "choices", truncate={"max_length": 512})
    strategies = ("bfd", "none")
    return {
        name: kit.packed(kit.merged(config, {"out": str(root / name), "pack": {"strategy": name}})).folder
        for name in strategies
    }


def models() -> tuple[Any, Any]:
    """A policy and its reference, which differ as after some steps."""
    reference = make("Llama", vocab_size=3200, max_position_embeddings=512, pad_token_id=0)
    policy = copy.deepcopy(reference)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator)
    return policy, reference


def gradients(model: Any) -> dict[str, torch.Tensor]:
    named = {name.removeprefix("module."): weight for name, weight in model.named_parameters()}
    return {name: weight.grad for name, weight in named.items() if weight.grad is not None}


def logps_of(batch: dict[str, Any], model: Any) -> Any:
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "sides", "reference")}
    logits = model(**inputs, logits_to_keep=predicting_positions(batch)).logits[0]
    return document_logps(logits, batch)


def by_trl(kind: str, folder: Path, policy: Any, reference: Any, out: Path) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and the gradients of a batch of all pairs, by DPOTrainer."""
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    class Prepared(DPOTrainer):  # type: ignore[misc]  # trl is not followed
        """Takes pairs that are tokenized already."""

        def _prepare_dataset(self, dataset: Any, *arguments: Any) -> Any:
            return dataset

    rows = datasets.load_from_disk(str(folder))
    assert len(rows) == PAIRS
    arguments = DPOConfig(
        output_dir=str(out), max_length=None, beta=0.1, loss_type=[TRL_KINDS[kind]], use_cpu=True, report_to=[],
        per_device_train_batch_size=PAIRS, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(kit.demo_tokenizer())
    trainer = Prepared(policy, ref_model=reference, args=arguments, train_dataset=rows, processing_class=tokenizer)
    loss = trainer.compute_loss(trainer.model.train(), trainer.data_collator(list(rows)))
    loss.backward()
    return float(loss), gradients(trainer.model)


def by_packed_rows(
    kind: str, folder: Path, policy: Any, reference: Any, out: Path
) -> tuple[float, dict[str, torch.Tensor]]:
    """The same of all packed rows in one batch, with the reference's file between the two models."""
    use_packed(policy)
    use_packed(reference)
    rows = len(kit.Packed(folder).rows())
    loader = PackedLoader(folder, rows_per_step=rows, rank=0, world_size=1)
    loader.reference = reference_logps(
        reference, loader, out / "reference.arrow", lambda batch: logps_of(batch, reference).sums
    )
    (batch,) = list(loader)
    sums, counts = logps_of(batch, policy)
    result = preference_loss(kind, sums, counts, batch["sides"], batch["reference"], beta=0.1)
    assert 1 < rows < result.pairs == PAIRS
    loss = result.total / result.pairs
    loss.backward()
    return float(loss), gradients(policy)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRL_KINDS)
def test_a_step_is_that_of_trl(kind: str, packed: dict[str, Path], tmp_path: Path) -> None:
    """TRL adds log-probabilities up in float32, packtrain in float64, so that losses of pairs of some hundred tokens
    differ in their seventh digit.
    """
    pytest.importorskip("trl")
    policy, reference = models()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, their_gradients = by_trl(
            kind, packed["none"], copy.deepcopy(policy), copy.deepcopy(reference), tmp_path / "trl"
        )
    ours, our_gradients = by_packed_rows(kind, packed["bfd"], policy, reference, tmp_path)
    if kind == "dpo":
        assert abs(ours - math.log(2)) > 0.01, "policy and reference differ"
    assert our_gradients.keys() == their_gradients.keys()
    size = max(float(gradient.abs().max()) for gradient in our_gradients.values())
    worst = max(float((gradient - their_gradients[name]).abs().max()) for name, gradient in our_gradients.items())
    assert ours == pytest.approx(theirs, rel=2e-6)
    assert worst < 1e-5 * size


# transformers' Trainer, as docs/trainers.md has it


def pair_trainer() -> Any:
    """The trainer of the page, which is read from it."""
    from tests.docs.page import blocks

    (text,) = (block.text for block in blocks("docs/trainers.md") if "class PairTrainer" in block.text)
    names: dict[str, Any] = {}
    definitions = text.partition("loader = ")[0].replace(
        'AutoModelForCausalLM.from_pretrained("path/to/model")', "None"
    )
    exec(definitions.replace("use_packed(model)\n", ""), names)
    return names["PairTrainer"]


@pytest.mark.slow
def test_a_step_of_transformers_trainer_is_the_mean_over_its_pairs(packed: dict[str, Path], tmp_path: Path) -> None:
    """Whatever the micro-batches: the gradient of two of them is that of all rows in one batch."""
    from transformers import TrainingArguments

    policy, reference = models()
    rows = datasets.load_from_disk(str(packed["bfd"]))
    steps: dict[str, dict[str, torch.Tensor]] = {}
    for name, size, parts in (("one batch", len(rows), 1), ("row by row", 1, len(rows))):
        model = copy.deepcopy(policy)
        _, steps["loop"] = by_packed_rows("dpo", packed["bfd"], copy.deepcopy(policy), reference, tmp_path)
        loader = PackedLoader(packed["bfd"], rows_per_step=1, rank=0, world_size=1)
        stored = reference_logps(
            reference, loader, tmp_path / "reference.arrow", lambda batch: logps_of(batch, reference).sums
        )
        use_packed(model)
        arguments = TrainingArguments(
            str(tmp_path / "out"), per_device_train_batch_size=size, gradient_accumulation_steps=parts, max_steps=1,
            remove_unused_columns=False, optim="sgd", learning_rate=1.0, lr_scheduler_type="constant",
            max_grad_norm=0, weight_decay=0, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
        trainer = pair_trainer()(model, arguments, train_dataset=rows, data_collator=partial(collate, reference=stored))
        trainer.train()
        steps[name] = {key: before[key] - weight.detach() for key, weight in model.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in steps["loop"].values())
    for name in ("one batch", "row by row"):
        for key, gradient in steps["loop"].items():
            assert float((steps[name][key] - gradient).abs().max()) < 1e-5 * largest, (name, key)
