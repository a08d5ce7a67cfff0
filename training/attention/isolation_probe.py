"""Proves that documents packed into one row do not see each other, on the same model and callable that train.

1. *Isolation*: the gradient of each document's loss with respect to every other document's embeddings is zero to the
   bit, or it is a leak.
2. *Control*: the same gradient with respect to the document itself is not zero, or the probe would prove nothing.
3. *Equivalence*: each document gives the same outputs packed and alone, which finds wrong positions; in a few short
   documents of random tokens, and at the lengths of a real batch.

About ten tiny forward passes, and nine of a real batch without gradients.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import logging

from ...schemas.errors import ConfigError, LeakError
from ...schemas.rows import IGNORE_INDEX
from ..model import default_device, draw_weights, is_out_of_memory, load_weights, message_of, read_config
from .model_parts import unwrap
from .packed_attention import Applied, use_packed
from .probe_setup import (
    Batch,
    PackedDocument,
    cut_out,
    documents_of,
    is_compiled,
    random_documents,
    shrink,
    to_device,
    undisturbed,
)
from .varlen import NAME, UNPACKED

LENGTHS = (17, 23, 9)
"""Lengths of the random documents: odd, so that none is a multiple of a kernel's tile."""
COMPARED, SEEN = 8, 32
"""Documents of a real batch that are compared with themselves alone, and tokens of each."""
THRESHOLDS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2}
"""Largest RMS of a document's logits packed minus alone, relative to their spread; 0.05 in other dtypes. Not 0, because
rounding differs in rows of another length."""
CPU_FLOAT32 = 1e-5
"""The same on a CPU, which computes float32 in full precision: 33 tested architectures differ by at most 3e-7. Rotary
embeddings for another length change a model with random weights by as little as 3e-5."""
Call = Callable[[Batch], Any]
"""The callable that trains: a batch → outputs with `logits`."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    """`runs`, `isolation`, `control`, `equivalence` or `at length`."""
    passed: bool
    value: str
    """The measured result."""
    threshold: str
    """The expected result."""
    detail: str = ""
    """What the result means, or what went wrong, in one sentence."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """All checks of one model, in one setting."""

    model: str
    attention: str
    """Attention implementation in the model's configuration."""
    checks: tuple[Check, ...]
    hint: str
    """What to do about a failure; empty if there is none."""

    @property
    def isolated(self) -> bool:
        """Whether every check passed: documents are isolated, and each gives the same outputs as alone."""
        return all(check.passed for check in self.checks)

    @property
    def values(self) -> str:
        """The measured results in a line."""
        return ", ".join(f"{one.name} = {one.value}" for one in self.checks)

    def check(self, name: str) -> Check | None:
        """Return a check by name; None if it was not made."""
        return next((check for check in self.checks if check.name == name), None)

    def require(self) -> "ProbeReport":
        """Return this report, or raise if a check failed.

        Raises:
            LeakError: a check failed; the message names the check, and what to do.
        """
        if self.isolated:
            return self
        said = "; ".join(
            f"{one.name} is {one.value}, and should be {one.threshold}{f' ({one.detail})' if one.detail else ''}"
            for one in self.checks
            if not one.passed
        )
        does = "does not run on a packed batch" if self.check("runs") else "does not keep packed documents apart"
        hint = f". {self.hint[0].upper()}{self.hint[1:]}" if self.hint else ""
        raise LeakError(f"{self.model} with attention {self.attention} {does}: {said}{hint}")


def probe(
    model: Any,
    *,
    call: Call | None = None,
    batch: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
) -> ProbeReport:
    """Find out whether packed documents see each other, and whether each is computed as it would be alone.

    On several ranks all must call it with the same arguments, except for `batch`, because passes of sharded models are
    collective. Afterwards the model is as it was before: modes, gradients, buffers, random generators.

    Args:
        model: a causal language model of transformers, also within PEFT, DDP, FSDP or torch.compile.
        call: the same callable that trains, from a batch to outputs with `logits`; by default `model(**batch)`.
        batch: the first batch that trains, as the loader makes it: a few of its documents are also compared with
            themselves alone.
        device: the device of the batches; by default that of the model's weights.

    Raises:
        ConfigError: the model is not from transformers.
        RuntimeError, MemoryError: memory ran out, which says nothing of documents.
    """
    bare = unwrap(model)
    if not hasattr(bare, "config"):
        raise ConfigError(
            f"{type(bare).__name__} is not a model of transformers: it has no config; give one of from_pretrained"
        )
    place = torch.device(next(iter(model.parameters()), torch.empty(0)).device if device is None else device)
    keeps = call is None and "logits_to_keep" in inspect.signature(bare.forward).parameters
    call = call or (lambda batch: model(**batch))
    numbered = batch is not None and "seq_idx" in batch
    shares = batch is not None and "paths" in batch
    given = random_documents(bare.config, LENGTHS, place, seq_idx=numbered, shares=shares)
    name = str(getattr(bare.config, "_attn_implementation", "?"))
    with undisturbed(model) as calm:
        checks, dtype = _run_once(model, call, given)
        if not _any_rank(bool(checks), place):
            calm()
            checks += _isolation(model, call, given)
            checks.append(_equivalence(call, given, documents_of(given), dtype))
            if batch is not None and not _any_rank(not all(check.passed for check in checks), place):
                moved = to_device({key: one for key, one in batch.items() if key != "loss_weights"}, place)
                every = documents_of(batch)
                documents = [document for document in every if document.end - document.begin > 1] or every[:1]
                # Always as many, as ranks must make the same number of passes: one may be compared twice.
                some = [max(documents, key=lambda document: len(document.path))]
                some += [documents[round(number)] for number in np.linspace(0, len(documents) - 1, COMPARED - 1)]
                checks.append(_equivalence(call, moved, some, dtype, keeps=keeps, name="at length"))
    return ProbeReport(type(bare).__name__, name, tuple(checks), _hint(name, checks))


def probe_model(where: Path, *, attention: str = "auto", dtype: str | None = None) -> tuple[ProbeReport, Applied, str]:
    """Build a model and probe it as the trainer would. Needs no tokenizer, data, GPU or weights, because only code
    decides what leaks.

    Args:
        where: a folder with config.json and weights; or a config.json, or a folder without weights, for a tiny model
            of this architecture with random weights.
        attention: as in the trainer's configuration.
        dtype: dtype of the weights; by default bfloat16 on CUDA, float32 elsewhere.

    Returns:
        The report, the attention that was applied, and a description of how the model was made.

    Raises:
        ConfigError: there is no model, or transformers does not know it as a causal language model.
        AttentionError: the attention cannot be applied.
    """
    folder = where.parent if where.name == "config.json" else where
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{where}: there is no config.json; give the folder of a model, as save_pretrained writes it")
    place = default_device()
    dtype = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    logging.set_verbosity_error()  # this process does nothing else, and the table shows what matters
    logging.disable_progress_bar()
    if folder == where and any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin")):
        made, model = "its own weights", load_weights(folder, dtype=getattr(torch, dtype))
    else:
        config = read_config(folder)
        try:
            made, model = "tiny, weights at random", draw_weights(shrink(config), 0, dtype=getattr(torch, dtype))
        except Exception as error:  # architectures raise all kinds of errors at sizes that they do not expect
            said = f"{config.model_type} cannot be shrunk ({message_of(error)})"
            raise ConfigError(f"{where}: {said}; give a folder with weights") from error
    model.to(place)
    applied = use_packed(model, attention)
    try:
        report = probe(model)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"{where}: memory ran out on {place.type} ({message_of(error)}), so nothing is known of documents; give "
            "the model's config.json in place of its folder: a tiny model of this architecture is probed then"
        ) from error
    return report, applied, f"{made}, {dtype} on {place.type}"


# Checks


def _run_once(model: Any, call: Call, batch: Batch) -> tuple[list[Check], torch.dtype]:
    """That the model runs as it trains, dropout included; no check if it does. And the least exact dtype in which it
    computes.
    """
    kinds = [one.dtype for one in model.parameters() if one.is_floating_point()]
    with torch.no_grad():
        try:
            logits = _logits_of(call(batch))
        except Exception as error:  # any other error of the model is a result
            if is_out_of_memory(error):
                raise
            return [Check("runs", False, type(error).__name__, "a forward pass", message_of(error))], torch.float32
    kinds.append(logits.dtype)
    if torch.is_autocast_enabled(logits.device.type):
        kinds.append(torch.get_autocast_dtype(logits.device.type))
    return [], min(kinds, key=lambda kind: torch.finfo(kind).bits)


def _isolation(model: Any, call: Call, batch: Batch) -> list[Check]:
    """That documents have no gradient with respect to each other, and one with respect to themselves."""
    documents = documents_of(batch)
    numbers = range(len(documents))
    try:
        matrix = [_influence(model, call, batch, documents, number) for number in numbers]
    except Exception as error:  # any other error of the model is a result
        if is_out_of_memory(error):
            raise
        fix = "if it is checkpointed, set gradient_checkpointing_kwargs: {use_reentrant: false}"
        said = f"{message_of(error).rstrip('.')}; {fix}"
        return [Check("runs", False, type(error).__name__, "a backward pass", said)]
    pairs = [(d, e) for d in numbers for e in numbers if d != e]
    d, e = max(pairs, key=lambda pair: _nan_highest(matrix[pair[0]][pair[1]]))
    leak, own = matrix[d][e], min(matrix[d][d] for d in numbers)
    detail = f"gradient of document {d}'s loss with respect to document {e}'s embeddings"
    if leak == 0:
        detail = "largest gradient of one document's loss with respect to another's embeddings"
    proves = "" if own > 0 else "a document's loss does not depend on its own embeddings, so the probe proves nothing"
    return [
        Check("isolation", leak == 0, f"{leak:.3g}", "0, to the bit", detail),
        Check("control", own > 0, f"{own:.3g}", "more than 0", proves),
    ]


def _influence(model: Any, call: Call, batch: Batch, documents: Sequence[PackedDocument], trained: int) -> list[float]:
    """For each document, the largest gradient of one document's loss with respect to the embeddings of its piece; of
    another document's piece, without the tokens that the trained one shares.

    Raises:
        RuntimeError and others: there is no gradient.
    """
    embedding = unwrap(model).get_input_embeddings()
    begin, end, path = documents[trained]
    batch = {**batch, "labels": torch.full_like(batch["labels"], IGNORE_INDEX)}
    batch["labels"][:, begin + 1 : end] = batch["input_ids"][:, begin + 1 : end]
    taken: list[torch.Tensor] = []

    def cut(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        """Detach the graph here, so that gradients arrive at our own tensor."""
        taken.append(output.detach().clone().requires_grad_(True))
        return taken[-1].clone()  # some models change it in place

    with torch.enable_grad():
        if is_compiled(model):  # compiled code ignores hooks
            embedded = cut(embedding, None, embedding(batch["input_ids"]))
            outputs = call(
                {**{key: one for key, one in batch.items() if key != "input_ids"}, "inputs_embeds": embedded}
            )
        else:
            handle = embedding.register_forward_hook(cut)
            try:
                outputs = call(batch)
            finally:
                handle.remove()
        if len(taken) != 1:
            raise RuntimeError(f"the embedding of input_ids was used {len(taken)} times in a forward pass")
        logits = _logits_of(outputs)[0, :-1].float()
        loss = functional.cross_entropy(logits, batch["labels"][0, 1:], ignore_index=IGNORE_INDEX)
        (gradient,) = torch.autograd.grad(loss, taken)
    size = gradient.detach()[0].abs().amax(dim=-1).float().cpu()
    own = float(size[begin:end].max())
    size[path] = 0  # what it may depend on
    largest = [float(size[document.begin : document.end].max()) for document in documents]
    largest[trained] = own
    return largest


def _equivalence(
    call: Call,
    batch: Batch,
    documents: Sequence[PackedDocument],
    dtype: torch.dtype,
    *,
    keeps: bool = False,
    name: str = "equivalence",
) -> Check:
    """Documents of a packed batch compared with themselves alone.

    Args:
        keeps: the model takes `logits_to_keep`, and only `SEEN` tokens of each document are compared, because the
            logits of all tokens would take much memory.
    """
    device, tokens = batch["input_ids"].device, batch["input_ids"].shape[1]
    sizes = [document.end - document.begin for document in documents]
    places = [torch.linspace(0, size - 1, min(size, SEEN if keeps else size)) for size in sizes]
    rows = [place.round().long().to(device) for place in places]
    longest = max(len(document.path) for document in documents)
    size = f"documents of up to {longest:,} tokens in a row of {tokens:,}"

    def logits(batch: Batch, places: torch.Tensor) -> torch.Tensor:
        """float64 (places, V)."""
        if not keeps:
            return _logits_of(call(batch))[0, places].double()
        given = {key: one for key, one in batch.items() if key != "labels"}
        return _logits_of(call({**given, "logits_to_keep": places}))[0].double()

    found = []
    try:
        with torch.no_grad():
            picked = torch.cat([row + document.begin for row, document in zip(rows, documents, strict=True)])
            packed = logits(batch, picked).split([*map(len, rows)])
            for mine, document, row in zip(packed, documents, rows, strict=True):
                alone = logits(cut_out(batch, document), row + document.shared)
                spread = (alone - alone.mean(dim=-1, keepdim=True)).pow(2).mean().sqrt()
                found.append(float((mine - alone).pow(2).mean().sqrt() / spread.clamp_min(1e-12)))
    except (RuntimeError, ValueError, IndexError) as error:  # such as beyond the last position
        if is_out_of_memory(error):
            raise
        return Check(name, False, type(error).__name__, "a forward pass", f"{size}: {message_of(error)}")
    worst = max(range(len(found)), key=lambda index: _nan_highest(found[index]))
    exact = device.type == "cpu" and dtype == torch.float32
    limit = CPU_FLOAT32 if exact else THRESHOLDS.get(dtype, 5e-2)
    same = found[worst] <= limit
    what = "as alone" if same else f"the one at token {documents[worst].begin:,} is not what it is alone"
    return Check(name, same, f"{found[worst]:.2g}", f"at most {limit:g}", f"{size}: {what}")


def _hint(attention: str, checks: Sequence[Check]) -> str:
    """What to do about the checks that failed, for a message."""
    failed = {check.name for check in checks if not check.passed}
    if not failed or "runs" in failed:
        return ""
    if any(check.value == "nan" for check in checks):
        return "its outputs are not numbers (NaN or infinite), before any training; look at its weights and their dtype"
    if failed == {"at length"}:
        return (
            "pack with a smaller truncate.max_length (and pack.row_length, if it is set), or take fewer rows a batch, "
            "or another model"
        )
    return UNPACKED if attention == NAME else f"set attention: auto, or {UNPACKED}"


def _logits_of(outputs: Any) -> torch.Tensor:
    """(1, T, vocabulary). Raises ConfigError if there are none."""
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(found, torch.Tensor) or found.ndim != 3:
        raise ConfigError(f"the callable returned {type(outputs).__name__} without logits; return the model's outputs")
    return found


def _nan_highest(value: float) -> float:
    """A key for `max` by which NaN is the largest number, so that it is not overlooked."""
    return float("inf") if value != value else value


def _any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any rank, so that all ranks take the same branch."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return flag
    found = torch.tensor([int(flag)], device=device)
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return bool(found.item())
