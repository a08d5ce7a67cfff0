"""The probe: finds out whether packed documents are isolated, with the callable that trains. Takes about ten tiny
forward passes.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ...schemas.errors import ConfigError
from ...schemas.parallel import Parallel
from ..attention import BLOCK_NAME, NAME
from ..attention.apply import unwrap
from ..attention.calls import count_calls, expected_calls, is_compiled
from ..batch import flatten
from .diagnosis import diagnose
from .documents import Call, Make, RandomDocuments, to_device
from .equivalence import compare
from .gradient import NoGradientError, influence
from .heads import heads_check
from .limits import document_limit, row_limit
from .outputs import first_line
from .perturbation import perturb
from .quiet import quiet
from .report import NOT_NUMBERS, Check, ProbeReport
from .static import attention_checks, batch_check, dropout_check, layers_check, length_checks

DOCUMENTS = (17, 23, 9)
"""Lengths of the documents: odd, so that none is a multiple of a kernel's tile."""
_STATIC = ("batch", "layers", "dropout", "length", "stretch", "heads")
"""Checks that do not run the model."""


def probe(
    model: Any,
    *,
    call: Call | None = None,
    seed: int = 0,
    documents: Sequence[int] = DOCUMENTS,
    device: torch.device | str | None = None,
    make: Make = flatten,
    tokens: int | None = None,
    longest: int | None = None,
    dtype: torch.dtype | None = None,
    explain: bool = True,
    parallel: Parallel | None = None,
    config: Any = None,
) -> ProbeReport:
    """Find out whether packed documents see each other, and whether each is computed as it would be alone.

    On several ranks all must call it with the same arguments, because passes of sharded models are collective.
    Afterwards the model is as it was before: modes, gradients, buffers, random generators.

    Args:
        model: a causal language model of transformers, also within PEFT, DDP, FSDP or torch.compile.
        call: the same callable that trains, from a batch to outputs with `logits` or `loss`; by default
        `model(**batch)`.
        seed: seed of the documents' tokens; the same on every rank.
        documents: lengths of the documents; at least two.
        device: the device of the batches; by default that of the model's weights.
        make: turns packed rows into a batch, as the trainer does; for example `partial(flatten, seq_idx=True)`.
        tokens: the most tokens that a batch of one rank will hold, for models that count tokens along the row.
        longest: tokens of the data's longest document. With `tokens`, documents of that length are also compared packed
        and alone, in a row as long as a batch; this takes two more forward passes of a whole batch.
        dtype: dtype of the forward pass, if autocast differs from the weights; by default the dtype that attention
        gets, or that of the weights. It decides how much rounding to expect.
        explain: if there is a leak, find the setting at fault (takes more passes).
        parallel: the devices that share a row; with layout `ulysses`, also check that they can share attention heads.
        config: the configuration that counts heads, if `model` is a smaller copy; by default that of the model.

    Raises:
        ConfigError: there are fewer than two documents, or the model is not from transformers.
    """
    if len(documents) < 2 or min(documents) < 2:
        raise ConfigError(f"documents={tuple(documents)}: a probe needs at least two, of at least two tokens")
    bare = unwrap(model)
    if not hasattr(bare, "config"):
        raise ConfigError(
            f"{type(bare).__name__} is not a model of transformers: it has no config; give one of from_pretrained"
        )
    where = _device_of(model, device)
    plain = call is None and "logits_to_keep" in inspect.signature(bare.forward).parameters
    call = call or (lambda batch: model(**batch))
    made = RandomDocuments(bare.config, documents, seed, make)
    batch = made.packed()
    checks = [*attention_checks(model), dropout_check(model), layers_check(model, batch), batch_check(batch)]
    checks += length_checks(model, tokens, longest)
    checks += heads_check(config or bare.config, parallel)
    shown = (max(documents), sum(documents))
    calls: int | None = None
    matrix: tuple[tuple[float, ...], ...] = ()
    with quiet(model):
        runs, calls, seen = _run_once(model, call, made, where)
        dtype = dtype or seen or _dtype_of(bare)
        checks += runs
        if all(check.passed for check in runs if check.name == "runs"):
            dynamic, matrix = _isolation(model, call, made, where, dtype)
            checks += dynamic
            checks.append(_equivalence(call, made, where, dtype))
        good = not _on_any_rank(not all(check.passed for check in checks), where)
        if good and longest is not None and tokens is not None and longest > max(documents):
            long = RandomDocuments(bare.config, _as_long(longest, tokens), seed, make)
            checks.append(_at_length(call, long, where, dtype, chosen=plain))
            shown = (max(long.lengths), sum(long.lengths))
        fault = fix = None
        static = [check for check in checks if not check.passed and check.name in _STATIC]
        failed = [check for check in checks if not check.passed and check not in static]
        if _on_any_rank(any(check.value == "nan" for check in failed), where):
            fault, fix = NOT_NUMBERS, "look at its weights, and at their dtype"
        elif _on_any_rank(any(check.name == "at length" for check in failed), where):
            fault = f"lengths: {type(bare).__name__} computes long documents or rows differently from short ones"
            fix = "pack with a smaller truncate.max_length, or take another model"
        elif _on_any_rank(bool(failed), where) and explain:
            diagnosis = diagnose(model, call, made, where, dtype)
            fault, fix = diagnosis.fault, diagnosis.fix
            if failed and failed[0].name == "runs":
                fault = failed[0].detail
        elif static:
            fault, fix = f"{static[0].name}: {static[0].value}", _fix_of(static[0])
    name = str(getattr(bare.config, "_attn_implementation", "?"))
    beyond = "; ".join(limit.reason for limit in (document_limit(model), row_limit(model)) if limit)
    return ProbeReport(type(bare).__name__, name, tuple(checks), fault, fix, calls, matrix, shown, beyond)


def _run_once(
    model: Any, call: Call, documents: RandomDocuments, device: torch.device
) -> tuple[list[Check], int | None, torch.dtype | None]:
    """Check that the model runs, and that every layer uses packtrain's attention."""
    ours = unwrap(model).config._attn_implementation in (NAME, BLOCK_NAME)
    batch = to_device(documents.packed(), device)
    with torch.no_grad(), count_calls(model) as seen:
        try:
            call(batch)
        except Exception as error:  # any error of the model is a result
            return [Check("runs", False, type(error).__name__, "a forward pass", first_line(error))], None, None
    if not ours or is_compiled(model):
        return [], None, None
    expected = expected_calls(model)
    good = seen.calls > 0 and (expected == 0 or seen.calls % expected == 0)
    detail = "some layers compute attention in their own code, which ignores bounds" if expected else "no layer uses it"
    detail = "" if good else detail
    check = Check("calls", good, f"{seen.calls} of packed attention", f"{max(expected, 1)}, or a multiple", detail)
    return [check], seen.calls, seen.dtype


def _isolation(
    model: Any, call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype
) -> tuple[list[Check], tuple[tuple[float, ...], ...]]:
    try:
        found = influence(model, call, documents, device)
    except NoGradientError as error:
        return _perturbation(call, documents, device, dtype, f"no gradients: {error}"), ()
    except (RuntimeError, ValueError, TypeError) as error:  # an error of the backward pass; the test must continue
        return [Check("isolation", False, type(error).__name__, "0, to the bit", first_line(error))], ()
    ends = [f"{value:.3g}" for value in (found.leak, found.own)]
    loss, embeddings = found.worst
    leak = Check(
        "isolation",
        found.leak == 0,
        ends[0],
        "0, to the bit",
        "largest gradient of one document's loss with respect to another's embeddings"
        if found.leak == 0
        else f"gradient of document {loss}'s loss with respect to document {embeddings}'s embeddings",
    )
    control = Check(
        "control",
        found.own > 0,
        ends[1],
        "more than 0",
        "" if found.own > 0 else "a document's loss does not depend on its own embeddings, so the probe proves nothing",
    )
    checks = [leak, control]
    if _on_any_rank(not leak.passed, device) and device.type == "cuda":
        # A kernel may add noise here. The perturbation probe measures the noise, and decides.
        more = _perturbation(call, documents, device, dtype, "the gradient is not 0, so perturbation checks it")
        if all(check.passed for check in more) and found.leak < 1e-3 * found.own:
            checks = [Check("isolation", True, ends[0], "noise of an inexact kernel", leak.detail), control]
        checks += more
    return checks, found.matrix


def _perturbation(
    call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype, why: str
) -> list[Check]:
    moved = perturb(call, documents, device, dtype)
    limit = f"at most {moved.threshold:.1g}"
    return [
        Check("perturbation", moved.apart, f"{moved.others:.3g}", limit, f"{why}; noise is {moved.noise:.1g}"),
        Check("control", moved.own > moved.threshold, f"{moved.own:.3g}", f"more than {moved.threshold:.1g}", ""),
    ]


def _as_long(longest: int, tokens: int) -> list[int]:
    """Return lengths of documents that fill a row of a batch: a short one, several of the longest, and a short one at
    the end.
    """
    first, last = DOCUMENTS[0], DOCUMENTS[-1]
    lengths = [first, min(longest, max(tokens - first - last, first))]
    while (room := tokens - sum(lengths) - last) >= first:
        lengths.append(min(longest, room))
    return [*lengths, min(longest, tokens - sum(lengths))]


def _equivalence(call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype) -> Check:
    found = compare(call, documents, device, dtype)
    detail = "relative difference between a document packed and alone"
    if not found.same:
        detail = f"document {found.document} packed is not what it is alone: wrong positions, or a leak"
    return Check("equivalence", found.same, f"{found.value:.2g}", f"at most {found.threshold:g}", detail)


def _at_length(
    call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype, *, chosen: bool
) -> Check:
    """Run `_equivalence` with documents and a row as long as in training."""
    size = f"documents of up to {max(documents.lengths):,} tokens in a row of {sum(documents.lengths):,}"
    try:
        found = compare(call, documents, device, dtype, chosen=chosen)
    except (RuntimeError, ValueError, IndexError) as error:  # out of memory, or beyond the last position
        return Check("at length", False, type(error).__name__, "a forward pass", f"{size}: {first_line(error)}")
    what = "as alone" if found.same else f"document {found.document} is not what it is alone"
    return Check("at length", found.same, f"{found.value:.2g}", f"at most {found.threshold:g}", f"{size}: {what}")


def _fix_of(check: Check) -> str:
    return {
        "batch": "take the batches of PackedLoader as they come",
        "length": "take fewer rows a step, or a shorter max_length",
        "stretch": "pack with a smaller truncate.max_length, or take another model",
        "heads": "take such a cp in pack.parallel and in your trainer, or a layout that divides no heads: ring or thd",
        "dropout": "set attention dropout to 0 in the model's config.json",
        "layers": "install the kernels and pass seq_idx, if the architecture supports that; else pad documents with "
        "PackedLoader(unpacked=True)",
    }[check.name]


def _device_of(model: Any, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


def _dtype_of(model: Any) -> torch.dtype:
    """Return the dtype of the forward pass, which decides how much rounding to expect."""
    device = next(model.parameters()).device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    floating = [weight.dtype for weight in model.parameters() if weight.is_floating_point()]
    return min(floating, key=lambda kind: torch.finfo(kind).bits, default=torch.float32)


def _on_any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any rank, so that all ranks take the same branch."""
    return bool(highest_of_ranks(int(flag), device))


def highest_of_ranks(number: int, device: torch.device) -> int:
    """Return the largest number of all ranks. All must run the same number of passes, because passes may be
    collective.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return number
    value = torch.tensor([number], device=device if distributed.get_backend() == "nccl" else "cpu")
    distributed.all_reduce(value, op=distributed.ReduceOp.MAX)
    return int(value.item())
