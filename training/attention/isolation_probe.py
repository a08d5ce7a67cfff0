"""Proves that documents packed into one row do not see each other, on the same model and callable that train.

1. *Isolation*: the gradient of each document's last hidden states with respect to every other document's embeddings is
   zero to the bit, or it is a leak.
2. *Control*: the same gradient with respect to the document itself is not zero, or the probe would prove nothing.
3. *Equivalence*: each document gives the same outputs packed and alone, which finds wrong positions; in a few short
   documents of random tokens, and at the lengths of a real batch.

About ten tiny forward passes, and nine of a real batch without gradients.
"""

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import logging

from ...schemas.errors import ConfigError
from ..models.model import default_device, draw_weights, is_out_of_memory, load_weights, message_of, read_config
from ..models.model_parts import unwrap
from ..rank_info import highest_of_ranks
from .packed_attention import Applied, use_packed
from .probe_checks import Call, check_equivalence, check_isolation, run_once
from .probe_report import Check, ProbeReport, describe_remedy
from .probe_setup import (
    PackedDocument,
    comparable_gradients,
    documents_of,
    random_documents,
    shrink,
    to_device,
    undisturbed,
)

LENGTHS = (17, 23, 9)
"""Lengths of the random documents: odd, so that none is a multiple of a kernel's tile."""
COMPARED_DOCUMENTS = 8
"""Documents of a real batch that are compared with themselves alone."""


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
        device: the device of the batches; by default the device of the model's weights.

    Raises:
        ConfigError: the model is not from transformers.
        RuntimeError, MemoryError: memory ran out, which says nothing of documents.
    """
    inner = unwrap(model)
    if not hasattr(inner, "config"):
        raise ConfigError(
            f"{type(inner).__name__} is not a model of transformers: it has no config; give one of from_pretrained"
        )
    if device is None:
        first_weight = next(iter(model.parameters()), torch.empty(0))  # a model without weights is on the CPU
        device = first_weight.device
    with undisturbed(model):
        checks = _run_checks(model, inner, call, batch, torch.device(device))
    attention = str(getattr(inner.config, "_attn_implementation", "?"))
    return ProbeReport(type(inner).__name__, attention, tuple(checks), describe_remedy(attention, checks))


def _run_checks(
    model: Any, inner: Any, call: Call | None, batch: Mapping[str, Any] | None, device: torch.device
) -> list[Check]:
    """The checks of a probe, up to the first part that fails on any rank: a rank that went on alone would wait for the
    others in its next pass.

    Args:
        inner: the model without wrappers.
        call: the callable that trains; None for `model(**batch)`.
        batch: the first batch that trains; None for random documents only.
        device: of the batches.
    """
    # Whether the model can be told to compute a few logits only. A callable of the caller's may not pass that on.
    keeps_logits = call is None and "logits_to_keep" in inspect.signature(inner.forward).parameters
    if call is None:
        call = partial(_call_model, model)
    random_batch = random_documents(
        inner.config,
        LENGTHS,
        device,
        # As the real batch, because these change what a model computes.
        seq_idx=batch is not None and "seq_idx" in batch,
        shares=batch is not None and "paths" in batch,
    )
    checks, dtype = run_once(model, call, random_batch)
    # There is a check only if it failed, and then all ranks end here.
    if highest_of_ranks(len(checks), device):
        return checks
    with comparable_gradients(model):
        checks += check_isolation(model, call, random_batch)
        checks.append(check_equivalence(call, random_batch, documents_of(random_batch), dtype))
        failures = sum(not check.passed for check in checks)
        if highest_of_ranks(failures, device) or batch is None:
            return checks
        # What a loss takes out of a batch before the model gets it.
        others = ("loss_weights", "sides", "reference")
        real_batch = to_device({key: value for key, value in batch.items() if key not in others}, device)
        documents = _some_documents(documents_of(batch))
        at_length = check_equivalence(call, real_batch, documents, dtype, keeps_logits=keeps_logits, name="at length")
    return [*checks, at_length]


def _call_model(model: Any, batch: Mapping[str, Any]) -> Any:
    """The callable of a model that trains by `model(**batch)`."""
    return model(**batch)


def _some_documents(documents: list[PackedDocument]) -> list[PackedDocument]:
    """The longest of a batch's documents, and others from its beginning to its end. They are always
    `COMPARED_DOCUMENTS`, because ranks must make the same number of passes: in a batch of few, some come twice.
    """
    # One token predicts nothing.
    candidates = [document for document in documents if document.end - document.begin > 1] or documents[:1]
    longest = max(candidates, key=lambda document: len(document.path))
    # Of 15 candidates, the other seven are 0, 2, 5, 7, 9, 12 and 14.
    places = np.linspace(0, len(candidates) - 1, COMPARED_DOCUMENTS - 1)
    return [longest, *(candidates[round(place)] for place in places)]


def probe_model(where: Path, *, attention: str = "auto", dtype: str | None = None) -> tuple[ProbeReport, Applied, str]:
    """Build a model and probe it as the trainer would. Needs no tokenizer, data, GPU or weights, because only code
    decides what leaks.

    Args:
        where: a folder with config.json and weights; or a config.json, or a folder without weights, for a tiny model
            of this architecture with random weights.
        attention: what is set on the model: one of `IMPLEMENTATIONS`.
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
    device = default_device()
    dtype = dtype or ("bfloat16" if device.type == "cuda" else "float32")
    logging.set_verbosity_error()  # this process does nothing else, and the table shows what matters
    logging.disable_progress_bar()
    has_weights = any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))
    if folder == where and has_weights:  # a config.json asks for the tiny model, whatever lies beside it
        weights = "its own weights"
        model = load_weights(folder, dtype=getattr(torch, dtype))
    else:
        weights = "tiny, weights at random"
        model = _draw_tiny(folder, where, getattr(torch, dtype))
    model.to(device)
    applied = use_packed(model, attention)
    try:
        report = probe(model)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"{where}: memory ran out on {device.type} ({message_of(error)}), so nothing is known of documents; give "
            "the model's config.json in place of its folder: a tiny model of this architecture is probed then"
        ) from error
    return report, applied, f"{weights}, {dtype} on {device.type}"


def _draw_tiny(folder: Path, where: Path, dtype: torch.dtype) -> Any:
    """A tiny model of a configuration's architecture, with random weights.

    Raises:
        ConfigError: it cannot be made.
    """
    config = read_config(folder)
    try:
        return draw_weights(shrink(config), seed=0, dtype=dtype)
    except Exception as error:  # architectures raise all kinds of errors at sizes that they do not expect
        problem = f"{config.model_type} cannot be shrunk ({message_of(error)})"
        raise ConfigError(f"{where}: {problem}; give a folder with weights") from error
