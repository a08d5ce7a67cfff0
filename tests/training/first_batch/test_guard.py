"""The guard: right uses of packed rows pass and train, wrong ones are stopped before anything was trained, with the
setting to change."""

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import packtrain
import pytest
import torch
from packtrain.schemas.errors import ConfigError, InputError, IntegrityError, LeakError
from packtrain.training import PackedGuard, PackedLoader, collate, guard
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.first_batch.documents import COMPARED_FIRST, KEY
from torch.nn import functional
from transformers import (
    AutoTokenizer,
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    logging,
)
from trl import SFTConfig, SFTTrainer

Batch = dict[str, Any]
TOKENIZER = AutoTokenizer.from_pretrained(Path(packtrain.__file__).parent / "pipeline" / "demo" / "tokenizer")
PAD = TOKENIZER.pad_token_id
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
logging.set_verbosity_error()
datasets.disable_progress_bars()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def build(packed: bool = False, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{"vocab_size": len(TOKENIZER), **SIZES, **settings})).train()
    if packed:
        use_packed(model)
    return model


def batches(data: Path, **options: Any) -> Any:
    return iter(PackedLoader(data, **{"rows_per_step": 2, "seed": 1, **options}))


def step(model: Any, batch: Batch, *, outside: bool = False) -> None:
    """A forward and a backward pass; `outside`: the loss is computed outside of the model."""
    if outside:
        labels = batch.pop("labels")
        logits = model(**batch).logits
        functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()).backward()
    else:
        model(**batch).loss.backward()


def arguments(where: Path, **settings: Any) -> TrainingArguments:
    return TrainingArguments(
        str(where), **{
            "max_steps": 1, "per_device_train_batch_size": 2, "use_cpu": True, "report_to": [], "disable_tqdm": True,
            "save_strategy": "no", "logging_strategy": "no", "remove_unused_columns": False, **settings,
        }
    )  # fmt: skip


def rows_of(data: Path) -> Any:
    return datasets.load_from_disk(str(data))["train"]


def by_trainer(data: Path, where: Path, model: Any = None, collator: Any = collate, **settings: Any) -> Trainer:
    trainer = Trainer(
        model or build(),
        arguments(where, **settings),
        train_dataset=rows_of(data).shuffle(seed=1),
        data_collator=collator,
        callbacks=[PackedGuard(data)],
    )
    trainer.train()
    return trainer


def by_trl(data: Path, where: Path, *, callback: bool = True, **settings: Any) -> None:
    config = SFTConfig(
        str(where), **{
            "max_steps": 1, "per_device_train_batch_size": 2, "use_cpu": True, "report_to": [], "disable_tqdm": True,
            "save_strategy": "no", "bf16": False, "logging_strategy": "no", **settings,
        }
    )  # fmt: skip
    trainer = SFTTrainer(
        build(),
        args=config,
        train_dataset=rows_of(data),
        processing_class=TOKENIZER,
        callbacks=[PackedGuard(data)] if callback else [],
    )
    if not callback:
        guard(trainer, data)
    trainer.train()


def stopped(use: Callable[[], Any], *words: str) -> None:
    """It is stopped, and the message has these words, or others of a pattern."""
    with pytest.raises(LeakError) as caught:
        use()
    text = str(caught.value)
    assert "nothing was trained" in text
    for word in words:
        assert re.search(word, text), text


# Right uses


def with_ones(batch: Batch) -> Batch:
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


def padded_at_both_ends(batch: Batch) -> Batch:
    def pad(tensor: torch.Tensor, value: int) -> torch.Tensor:
        return functional.pad(tensor, (7, 5), value=value)

    positions = torch.cat([torch.arange(7)[None], batch["position_ids"], torch.arange(5)[None]], 1)
    labels, ids = pad(batch["labels"], -100), pad(batch["input_ids"], PAD)
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "use_cache": False}


def with_a_first_label(batch: Batch) -> Batch:
    labels = batch["labels"].clone()
    labels[:, 0] = batch["input_ids"][:, 0]
    return {**batch, "labels": labels}


def rows_padded(examples: list[Batch]) -> Batch:
    """Several rows a batch, padded right, with positions."""
    longest = max(len(example["input_ids"]) for example in examples)
    lists: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "position_ids": []}
    for example in examples:
        rest = longest - len(example["input_ids"])
        lists["input_ids"].append([*example["input_ids"], *[PAD] * rest])
        lists["labels"].append([*example["labels"], *[-100] * rest])
        lists["position_ids"].append([*example["position_ids"], *range(rest)])
    return {name: torch.tensor(values) for name, values in lists.items()}


@pytest.mark.parametrize(
    "use",
    [
        lambda data, where: by_trl(data, where, padding_free=True, max_length=None),
        lambda data, where: by_trl(data, where, padding_free=True, max_length=None, callback=False),
        lambda data, where: by_trl(
            data, where, padding_free=True, max_length=None, gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": True},
        ),
        lambda data, where: by_trainer(data, where),
        lambda data, where: by_trainer(data, where, build(packed=True)),
        lambda data, where: by_trainer(data, where, label_smoothing_factor=0.1),
        lambda data, where: by_trainer(data, where, build(attention_dropout=0.1)),
        lambda data, where: by_trainer(data, where, build().bfloat16()),
        lambda data, where: by_trainer(data, where, build().half()),
        lambda data, where: by_trainer(data, where, collator=rows_padded),
        lambda data, where: by_trainer(data, where, gradient_checkpointing=True),
    ],
    ids=[
        "TRL", "TRL, guard(trainer)", "TRL, reentrant checkpoints", "Trainer", "use_packed", "label smoothing",
        "dropout", "bfloat16", "float16", "rows padded", "checkpoints",
    ],
)  # fmt: skip
def test_right_uses_of_trainers(
    use: Callable[[Path, Path], Any], two_sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use(two_sources, tmp_path)
    assert "packed documents are kept apart" in capsys.readouterr().out


@pytest.mark.parametrize("outside", [False, True], ids=["loss of the model", "loss of the loop"])
@pytest.mark.parametrize(
    "change",
    [lambda batch: batch, padded_at_both_ends, with_a_first_label],
    ids=["as it is", "padded at both ends", "a label of the first token, which none predicts"],
)
def test_right_loops(
    change: Callable[[Batch], Batch], outside: bool, two_sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build()
    guard(model, two_sources)
    step(model, change(next(batches(two_sources))), outside=outside)
    text = capsys.readouterr().out
    assert "kept apart" in text
    assert ("must shift" in text) is outside


def test_static_shapes(two_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build(packed=True)
    guard(model, two_sources)
    step(model, next(batches(two_sources, static_shapes=True)))
    assert "kept apart" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["plain", "DDP"])
def test_one_document_a_row_is_watched_for_some_batches(
    how: str, two_sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _wrapped(how)
    guard(model, two_sources)
    for number, batch in enumerate(batches(two_sources, unpacked=True, epochs=3)):
        step(model, batch)
        text = capsys.readouterr().out
        assert ("watching up to 8" in text) is (number == 0)
        assert ("no row of 8 batches has two documents" in text) is (number == 7)
        if number == 8:
            break


def test_a_later_batch_is_looked_at_until_one_has_shown_it(two_sources: Path) -> None:
    model = build()
    guard(model, two_sources)
    alone, together = batches(two_sources, unpacked=True), batches(two_sources)
    step(model, next(alone))
    stopped(lambda: step(model, with_ones(next(together))), "other documents see", "attention_mask of ones")


def test_once_shown_it_looks_no_more(two_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build()
    guard(model, two_sources)
    loader = batches(two_sources)
    step(model, next(loader))
    assert "kept apart" in capsys.readouterr().out
    step(model, with_ones(next(loader)))
    assert capsys.readouterr().out == ""
    assert not [part for part in model.modules() if part._forward_pre_hooks or part._forward_hooks]


def test_evaluations_are_not_looked_at(two_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build()
    guard(model, two_sources)
    batch = with_ones(next(batches(two_sources)))
    model.eval()(**batch)
    with torch.no_grad():
        model.train()(**batch)
    assert capsys.readouterr().out == ""


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


SLOW = [pytest.param(how, marks=pytest.mark.slow) for how in ("compiled", "compiled in place")]


@pytest.mark.parametrize("how", ["plain", "DDP", "PEFT", "FSDP", *SLOW])
def test_the_step_is_the_one_without_a_guard(how: str, two_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the very model that trains, however it is wrapped; and a leak is seen through the wrapper."""
    data = two_sources
    expected = _wrapped("plain" if how != "PEFT" else how)
    step(expected, next(batches(data)))
    model = _wrapped(how)
    guard(model, data)
    loader = batches(data)
    step(model, next(loader))
    assert "kept apart" in capsys.readouterr().out
    wanted = gradients(expected)
    actual = {name.replace("_orig_mod.", "").removeprefix("module."): one for name, one in gradients(model).items()}
    assert actual.keys() == wanted.keys()
    for name, gradient in actual.items():
        whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        torch.testing.assert_close(whole, wanted[name], rtol=1e-4, atol=1e-7)
    again = _wrapped(how)
    guard(again, data)
    stopped(lambda: step(again, with_ones(next(loader))), "other documents see")


def _wrapped(how: str) -> Any:
    model = build()
    match how:
        case "compiled":
            return torch.compile(model, backend="eager")
        case "compiled in place":
            model.compile(backend="eager")
        case "DDP" | "FSDP":
            distributed = torch.distributed
            if not distributed.is_initialized():
                distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
            if how == "DDP":
                return torch.nn.parallel.DistributedDataParallel(model)
            for layer in model.model.layers:
                torch.distributed.fsdp.fully_shard(layer)
            torch.distributed.fsdp.fully_shard(model)
        case "PEFT":
            peft = pytest.importorskip("peft")
            torch.manual_seed(1)
            settings = peft.LoraConfig(
                target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
            )
            return peft.get_peft_model(model, settings)
    return model


@pytest.fixture(autouse=True)
def _no_group() -> Any:
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch._dynamo.reset()


class Module(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """Holds a model and calls it in a method of its own, as a LightningModule does."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build()

    def training_step(self, batch: Batch) -> torch.Tensor:
        return self.model(**batch).loss


def test_a_module_that_holds_the_model(two_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = Module()
    guard(module, two_sources)
    module.training_step(next(batches(two_sources)))
    assert "kept apart" in capsys.readouterr().out
    guard(module, two_sources)
    stopped(lambda: module.training_step(with_ones(next(batches(two_sources)))), "other documents see")


class Unrelated(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """A model that is not of transformers, whose mixing of tokens knows no documents."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(len(TOKENIZER), 8), torch.nn.Linear(8, len(TOKENIZER))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        states = self.embedding(tokens)
        mixed = states.cumsum(1) if mask is None else mask.to(states.dtype) @ states
        return self.head(mixed)


def test_a_model_of_another_library(two_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = next(batches(two_sources))
    model = Unrelated().train()
    guard(model, two_sources)
    model(batch["input_ids"], mask=sees_itself(batch))
    assert "kept apart" in capsys.readouterr().out
    guard(model, two_sources)
    stopped(lambda: model(batch["input_ids"]), "other documents see")


def sees_itself(batch: Batch) -> torch.Tensor:
    """(1, T, T) which token sees which, if each sees those of its document up to itself."""
    number = (batch["position_ids"] == 0).cumsum(1)
    return (number[:, :, None] == number[:, None]).tril()


def test_one_document_that_sees_one_other_is_found(two_sources: Path) -> None:
    """Whichever of five documents that is, the earlier or the later one."""
    batch = next(batches(two_sources))
    begins = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    bounds = list(pairwise([*begins, batch["input_ids"].shape[1]]))
    assert len(bounds) >= 4
    for (begin, end), (seen_begin, seen_end) in permutations(bounds, 2):
        mask = sees_itself(batch)
        mask[0, begin:end, seen_begin:seen_end] = True
        model = Unrelated().train()
        guard(model, two_sources)
        seen = f"other documents see the one at tokens {seen_begin} to {seen_end} of row 0"
        stopped(partial(model, batch["input_ids"], mask=mask), seen)


class PaddedWithNan(Unrelated):
    """Gradients of padding are not numbers, as where attention hides a row of scores altogether."""

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        states = self.embedding(tokens)
        assert mask is not None
        mixed = mask.to(states.dtype) @ states
        is_padding = tokens == PAD
        mixed[is_padding] = states[is_padding].mul(0).sqrt()
        return self.head(mixed)


def test_gradients_of_padding_do_not_matter(two_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = padded_at_both_ends(next(batches(two_sources)))
    model = PaddedWithNan().train()
    guard(model, two_sources)
    model(batch["input_ids"], mask=sees_itself(batch))
    assert "kept apart" in capsys.readouterr().out


@pytest.mark.parametrize(("value", "words"), [(0.0, "no gradient with respect to themselves"), (float("nan"), "NaN")])
def test_what_shows_nothing_is_stopped(value: float, words: str, two_sources: Path) -> None:
    model = build()
    torch.nn.init.constant_(model.model.norm.weight, value)
    guard(model, two_sources)
    stopped(lambda: step(model, next(batches(two_sources))), "isolation could not be tested", words)


# Several ranks


def _rank(rank: int, data: str, store: str, queue: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(build())
    guard(model, data)
    batch = next(iter(PackedLoader(data, rows_per_step=2, rank=rank, world_size=2)))
    try:
        step(model, with_ones(batch) if rank == 1 else batch)
    except LeakError as error:
        queue.put((rank, str(error)))
    queue.close()
    queue.join_thread()  # until the message is sent
    torch.distributed.barrier()  # until the other rank has its verdict
    # Not by returning: while a process group is freed, a thread of gloo that frees tensors may wait for Python's lock,
    # and both wait for ever.
    os._exit(0)


@pytest.mark.slow
def test_ranks_give_one_verdict(two_sources: Path, tmp_path: Path) -> None:
    queue = torch.multiprocessing.get_context("spawn").Queue()
    torch.multiprocessing.spawn(_rank, (str(two_sources), str(tmp_path / "store"), queue), nprocs=2)
    verdicts = dict(queue.get(timeout=60) for _ in range(2))
    assert "another rank got a batch" in verdicts[0]
    assert "other documents see" in verdicts[1]


# Wrong uses: one change of a batch for every check


def shifted(batch: Batch) -> Batch:
    return {**batch, "labels": functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)}


def relabelled(change: Callable[[torch.Tensor, torch.Tensor], None]) -> Callable[[Batch], Batch]:
    """Labels changed in place by a function of labels and tokens."""

    def changed(batch: Batch) -> Batch:
        labels = batch["labels"].clone()
        change(labels, batch["input_ids"])
        return {**batch, "labels": labels}

    return changed


def _mask_all(labels: torch.Tensor, ids: torch.Tensor) -> None:
    labels.fill_(-100)


def _mask_some(labels: torch.Tensor, ids: torch.Tensor) -> None:
    labels[0, (labels[0] != -100).nonzero()[::3, 0]] = -100


def _train_prompts(labels: torch.Tensor, ids: torch.Tensor) -> None:
    labels.copy_(ids)


def _other_tokens(labels: torch.Tensor, ids: torch.Tensor) -> None:
    place = (labels[0] != -100).nonzero()[3, 0]
    labels[0, place] += 1


def without(*names: str) -> Callable[[Batch], Batch]:
    return lambda batch: {name: value for name, value in batch.items() if not name.startswith(names)}


def trained_padding(batch: Batch) -> Batch:
    padded = padded_at_both_ends(batch)
    padded["labels"][:, -5:] = PAD
    return padded


def other_tokens(batch: Batch) -> Batch:
    return {**batch, "input_ids": (batch["input_ids"] + 1) % len(TOKENIZER)}


def one_other_token(batch: Batch) -> Batch:
    """In the longest document, where documents are not compared first."""
    begins = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    lengths = [end - begin for begin, end in pairwise([*begins, batch["input_ids"].shape[1]])]
    longest = max(lengths)
    compared = {int(share * (longest - 1)) for share in COMPARED_FIRST} | set(range(KEY))
    place = next(place for place in range(longest) if place not in compared)
    ids = batch["input_ids"].clone()
    ids[0, begins[lengths.index(longest)] + place] += 1
    return {**batch, "input_ids": ids}


def cut(batch: Batch) -> Batch:
    return {name: batch[name][:, :-3] for name in ("input_ids", "labels", "position_ids")} | {"use_cache": False}


def from_the_middle(batch: Batch) -> Batch:
    return {name: batch[name][:, 11:] for name in ("input_ids", "labels", "position_ids")} | {"use_cache": False}


def counted_on(batch: Batch) -> Batch:
    return {**batch, "position_ids": torch.arange(batch["labels"].shape[1])[None]}


CHANGES: dict[str, tuple[Callable[[Batch], Batch], tuple[str, ...]]] = {
    "mask of ones": (with_ones, ("other documents see the one at tokens", "attention_mask of ones: leave it out")),
    "a cache": (
        lambda batch: without("cu_", "max_", "use_")(batch) | {"use_cache": True},
        ("other documents see", "pass use_cache=False"),
    ),
    "no positions": (without("position", "cu_", "max_"), ("documents see", "neither position_ids nor cu_seq_lens_q")),
    "positions count on": (counted_on, (r"position_ids do not start at 0 in \d+ of \d+ documents",)),
    "shifted": (shifted, ("already shifted, and the model shifts them again", "unshifted")),
    "nothing trained": (relabelled(_mask_all), ("no label is trained",)),
    "everything trained": (relabelled(_train_prompts), ("tokens are trained that the dataset masks",)),
    "some dropped": (relabelled(_mask_some), ("labels of the dataset are missing",)),
    "other labels": (relabelled(_other_tokens), ("1 labels are other tokens",)),
    "trained padding": (trained_padding, ("5 labels are trained outside of documents",)),
    "other tokens": (other_tokens, ("tokens 0 to .* of row 0 of the batch are no documents of this dataset",)),
    "one other token": (one_other_token, ("are no documents of this dataset",)),
    "cut": (cut, ("are a part of a document of .* tokens, which was cut",)),
    "from the middle": (from_the_middle, ("are a part of a document of .* tokens, which was cut",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_batch_is_stopped(name: str, two_sources: Path) -> None:
    change, words = CHANGES[name]
    model = build()
    before = [weight.clone() for weight in model.parameters()]
    guard(model, two_sources)
    stopped(lambda: step(model, change(next(batches(two_sources)))), *words)
    assert all(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))
    assert all(weight.grad is None for weight in model.parameters())


def test_labels_shifted_for_a_loss_outside_cannot_be_judged(
    two_sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_trainer(two_sources, tmp_path, collator=lambda rows: shifted(collate(rows)), label_smoothing_factor=0.1)
    assert "labels could not be judged: they are shifted" in capsys.readouterr().out


def test_labels_that_no_frame_holds(two_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build()
    guard(model, two_sources)
    model(**without("labels")(next(batches(two_sources)))).logits.sum().backward()
    assert "its labels could not be seen" in capsys.readouterr().out


def test_inputs_without_tokens(two_sources: Path) -> None:
    model = build()
    guard(model, two_sources)
    batch = next(batches(two_sources))
    embedded = model.get_input_embeddings()(batch.pop("input_ids"))
    stopped(lambda: model(inputs_embeds=embedded, **batch), "input_ids do not reach the model")


def test_another_dataset(two_sources: Path, folder: Path) -> None:
    model = build()
    guard(model, folder)
    stopped(lambda: step(model, next(batches(two_sources))), "tokens 0 to .* are no documents of this dataset")


def test_preference_pairs_are_not_trained_as_text(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = next(batches(pairs))
    batch.pop("sides")
    model = build()
    guard(model, pairs)
    step(model, dict(batch), outside=True)
    assert "kept apart" in capsys.readouterr().out
    guard(model, pairs)
    stopped(lambda: step(model, batch), "trains rejected answers too", "preference_loss")


def test_documents_that_share_tokens_are_refused(shared: Path) -> None:
    with pytest.raises(ConfigError, match=r"documents share tokens .pack.share., which the guard does not know"):
        PackedGuard(shared)


def test_a_model_that_the_trainer_does_not_call(two_sources: Path, tmp_path: Path) -> None:
    class Elsewhere(Trainer):  # type: ignore[misc]  # transformers is not followed
        def compute_loss(self, model: Any, inputs: Batch, *args: Any, **options: Any) -> torch.Tensor:
            return other(**inputs).loss + 0 * next(model.parameters()).sum()

    other = build()
    trainer = Elsewhere(
        build(),
        arguments(tmp_path),
        train_dataset=rows_of(two_sources),
        data_collator=collate,
        callbacks=[PackedGuard(two_sources)],
    )
    with pytest.raises(LeakError, match=r"the guard saw no batch: .*guard.model, data. with the one that it calls"):
        trainer.train()


# Wrong uses of trainers


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ("SFTConfig set padding_free=True .is False., max_length=None .is 1024.", "documents see")),
        ({"max_length": None}, ("SFTConfig set padding_free=True",)),
        ({"max_length": 64}, ("SFTConfig set .*max_length=None .is 64.", "which was cut")),
        ({"packing": True, "max_length": 128}, ("SFTConfig set packing=False .is True.",)),
    ],
    ids=["SFTConfig()", "no limit", "a limit", "packing"],
)
def test_wrong_settings_of_trl(
    settings: dict[str, Any], words: tuple[str, ...], two_sources: Path, tmp_path: Path
) -> None:
    stopped(
        lambda: by_trl(two_sources, tmp_path, **settings),
        "what SFTTrainer gives the model is not what was packed",
        *words,
    )


def test_a_collator_that_drops_the_bounds(two_sources: Path, tmp_path: Path) -> None:
    def use() -> None:
        by_trainer(two_sources, tmp_path, collator=DataCollatorWithFlattening(), remove_unused_columns=True)

    stopped(use, "documents see", "collate .is DataCollatorWithFlattening.", "remove_unused_columns=False")


def code_of(module: str, source: str) -> Callable[[Any, Batch], Any]:
    """The function `step(model, batch)` of a trainer's module: what its code calls the model with."""
    namespace: dict[str, Any] = {"__name__": module}
    exec(source, namespace)
    return namespace["step"]  # type: ignore[no-any-return]


ONES = """
import torch

def step(model, batch):
    names = [name for name in ("input_ids", "labels", "position_ids") if name in batch]
    ones = torch.ones_like(batch["input_ids"])
    return model(**{name: batch[name] for name in names}, attention_mask=ones, use_cache=False)
"""
"""A mask of ones: LLaMA-Factory at batch 1, ms-swift without padding_free, Unsloth where it drops it, verl without
use_remove_padding."""
UNSHIFTED = """
def step(model, batch):
    labels = batch.pop("labels")
    return model(**batch).logits
"""
"""NeMo Automodel and torchtitan take labels out of the batch, and their loss does not shift them."""


@pytest.mark.parametrize(
    ("module", "source", "words"),
    [
        ("llamafactory.train.sft.trainer", ONES, ("documents see", "export --to llama-factory", "neat_packing: true")),
        ("swift.trainers.trainers", ONES, ("documents see", "export --to ms-swift", "padding_free: true")),
        ("unsloth_compiled_cache.UnslothSFTTrainer", ONES, ("documents see", "Unsloth drops padding_free")),
        ("axolotl.core.trainers.base", ONES, ("documents see", "skip_prepare_dataset: true", "micro_batch_size: 1")),
        ("verl.workers.engine.fsdp.transformer_impl", ONES, ("documents see", "use_remove_padding=True")),
        ("nemo_automodel.recipes.llm.train_ft", UNSHIFTED, ("labels are not shifted", "PackedDataset .* shift_labels")),
        ("torchtitan.trainer", UNSHIFTED, ("the loss of torchtitan does not shift them", "shift_labels=True")),
    ],
)
def test_silent_leaks_of_other_trainers(module: str, source: str, words: tuple[str, ...], two_sources: Path) -> None:
    model = build()
    guard(model, two_sources)
    batch = dict(next(batches(two_sources)))
    stopped(lambda: code_of(module, source)(model, batch), *words)


def test_shifted_labels_are_right_where_the_loss_does_not_shift(
    two_sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build()
    guard(model, two_sources)
    code_of("nemo_automodel.recipes.llm.train_ft", UNSHIFTED)(model, shifted(dict(next(batches(two_sources)))))
    assert "kept apart" in capsys.readouterr().out


# Mistakes of who sets it up


def test_what_is_no_model(two_sources: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SimpleNamespace is neither a trainer of transformers nor a model"):
        guard(SimpleNamespace(), two_sources)
    with pytest.raises(InputError, match="not a finished dataset"):
        PackedGuard(tmp_path)
    with pytest.raises(InputError, match=r"no split 'holdouts'; it has .*did you mean holdout"):
        guard(build(), two_sources, "holdouts")


def test_a_damaged_shard_is_not_read(two_sources: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(two_sources, tmp_path / "copy"))
    batch = next(batches(two_sources))
    model = build()
    guard(model, copy)
    for shard in (copy / "train" / "shards").iterdir():
        content = shard.read_bytes()
        shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(IntegrityError, match="packtrain verify --repair"):
        step(model, batch)
