"""The checks of a probe: that a model runs, keeps documents apart, and computes each as it would alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...schemas.errors import ConfigError
from ..models.model import is_out_of_memory, message_of
from .influence import influences
from .probe_report import Check
from .probe_setup import Batch, PackedDocument, cut_out, documents_of

COMPARED_TOKENS = 32
"""Tokens of each document of a real batch that are compared with themselves alone."""
THRESHOLDS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2}
"""Largest RMS of a document's logits packed minus alone, relative to their spread; 0.05 in other dtypes. Not 0, because
rounding differs in rows of another length."""
CPU_FLOAT32 = 1e-5
"""The same on a CPU, which computes float32 in full precision: 33 tested architectures differ by at most 3e-7. Rotary
embeddings for another length change a model with random weights by as little as 3e-5."""
Call = Callable[[Batch], Any]
"""The callable that trains: a batch → outputs with `logits`."""


def run_once(model: Any, call: Call, batch: Batch) -> tuple[list[Check], torch.dtype]:
    """Run the model as it trains, dropout included.

    Returns:
        A list with the failed check, empty if the model runs; and the least exact dtype in which it computes, which
        means nothing if it does not run.
    """
    dtypes = [weight.dtype for weight in model.parameters() if weight.is_floating_point()]
    with torch.no_grad():
        try:
            logits = logits_of(call(batch))
        except Exception as error:  # any other error of the model is a result
            if is_out_of_memory(error):
                raise
            failure = Check(
                "runs",
                passed=False,
                value=type(error).__name__,
                threshold="a forward pass",
                detail=message_of(error),
            )
            return [failure], torch.float32
    dtypes.append(logits.dtype)
    if torch.is_autocast_enabled(logits.device.type):
        dtypes.append(torch.get_autocast_dtype(logits.device.type))
    return [], min(dtypes, key=lambda dtype: torch.finfo(dtype).bits)


def check_isolation(model: Any, call: Call, batch: Batch) -> list[Check]:
    """That documents have no gradient with respect to each other, and one with respect to themselves."""
    documents = documents_of(batch)
    numbers = range(len(documents))
    pieces = []
    for document in documents:
        piece = torch.zeros_like(batch["labels"], dtype=torch.bool)  # (1, T), true at the document's own tokens
        piece[:, document.begin : document.end] = True
        pieces.append(piece)
    try:
        influence_of_documents = influences(model, lambda: call(batch), pieces)
    except Exception as error:  # any other error of the model is a result
        if is_out_of_memory(error):
            raise
        failure = Check(
            "runs", passed=False, value=type(error).__name__, threshold="a backward pass", detail=message_of(error)
        )
        return [failure]
    # matrix[d][e]: how much document d's hidden states depend on document e's embeddings.
    matrix = [_influence_on(influence, documents, number) for number, influence in enumerate(influence_of_documents)]
    leaks = {(d, e): matrix[d][e] for d in numbers for e in numbers if d != e}
    d, e = max(leaks, key=lambda pair: _nan_highest(leaks[pair]))
    leak = leaks[d, e]
    weakest = min(matrix[number][number] for number in numbers)
    if leak == 0:
        detail = "largest gradient of one document's hidden states with respect to another's embeddings"
    else:
        detail = f"gradient of document {d}'s hidden states with respect to document {e}'s embeddings"
    useless = "a document does not depend on its own embeddings, so the probe proves nothing"
    isolation = Check("isolation", passed=leak == 0, value=f"{leak:.3g}", threshold="0, to the bit", detail=detail)
    control = Check(
        "control",
        passed=weakest > 0,
        value=f"{weakest:.3g}",
        threshold="more than 0",
        detail="" if weakest > 0 else useless,
    )
    return [isolation, control]


def _influence_on(influence: torch.Tensor, documents: Sequence[PackedDocument], number: int) -> list[float]:
    """For each document, the largest influence that a token of its piece has on one document.

    Tokens that this one shares with other documents are left out of theirs, because it must depend on them.

    Args:
        influence: (1, T) how much the one document depends on each token.
        documents: all of the batch.
        number: of the document among them.
    """
    per_token = influence[0].cpu()
    begin, end, path = documents[number]
    on_itself = float(per_token[begin:end].max())
    per_token[path] = 0  # its own tokens, and the tokens that it shares
    per_document = [float(per_token[document.begin : document.end].max()) for document in documents]
    per_document[number] = on_itself
    return per_document


def check_equivalence(
    call: Call,
    batch: Batch,
    documents: Sequence[PackedDocument],
    dtype: torch.dtype,
    *,
    keeps_logits: bool = False,
    name: str = "equivalence",
) -> Check:
    """Documents of a packed batch compared with themselves alone.

    Args:
        documents: the documents of the batch to compare.
        dtype: the least exact one in which the model computes, which says how different outputs may be.
        keeps_logits: whether the model takes `logits_to_keep`. Then at most `COMPARED_TOKENS` tokens of each document
            are compared, because the logits of all tokens would take much memory.
        name: of the check.
    """
    device = batch["input_ids"].device
    longest = max(len(document.path) for document in documents)
    size = f"documents of up to {longest:,} tokens in a row of {batch['input_ids'].shape[1]:,}"
    tokens = [_compared_tokens(document, keeps_logits).to(device) for document in documents]
    differences = []
    try:
        with torch.no_grad():
            # Compared tokens are counted within a piece: tokens 0 and 4 of a piece that begins at 20 are at 20 and 24
            # of the row. Alone, a document begins with the tokens that it shares, so its piece comes after these.
            places = torch.cat([numbers + document.begin for numbers, document in zip(tokens, documents, strict=True)])
            packed_logits = _logits_at(call, batch, places, keeps_logits).split([len(numbers) for numbers in tokens])
            for packed, document, numbers in zip(packed_logits, documents, tokens, strict=True):
                alone = _logits_at(call, cut_out(batch, document), numbers + document.shared, keeps_logits)
                # By what the difference is divided: how much the logits of a token differ from each other. A reward
                # model has one score for each token, so there it is how much the scores of the document differ.
                dimension = 0 if alone.shape[-1] == 1 else -1  # 0: tokens; -1: the logits of a token
                spread = (alone - alone.mean(dim=dimension, keepdim=True)).pow(2).mean().sqrt()
                differences.append(float((packed - alone).pow(2).mean().sqrt() / spread.clamp_min(1e-12)))
    except (RuntimeError, ValueError, IndexError) as error:  # as for a document longer than the model's positions
        if is_out_of_memory(error):
            raise
        return Check(
            name,
            passed=False,
            value=type(error).__name__,
            threshold="a forward pass",
            detail=f"{size}: {message_of(error)}",
        )
    worst = max(range(len(differences)), key=lambda index: _nan_highest(differences[index]))
    is_full_precision = device.type == "cpu" and dtype == torch.float32
    limit = CPU_FLOAT32 if is_full_precision else THRESHOLDS.get(dtype, 5e-2)
    is_same = differences[worst] <= limit
    result = "as alone" if is_same else f"the one at token {documents[worst].begin:,} is not what it is alone"
    return Check(
        name,
        passed=is_same,
        value=f"{differences[worst]:.2g}",
        threshold=f"at most {limit:g}",
        detail=f"{size}: {result}",
    )


def _logits_at(call: Call, batch: Batch, places: torch.Tensor, keeps_logits: bool) -> torch.Tensor:
    """float64 (places, V): the logits at some places of a batch.

    Args:
        keeps_logits: have the model compute no others, by `logits_to_keep`.
    """
    if not keeps_logits:
        return logits_of(call(batch))[0, places].double()
    # Without labels: the model's own loss needs all logits.
    arguments = {key: value for key, value in batch.items() if key != "labels"}
    return logits_of(call({**arguments, "logits_to_keep": places}))[0].double()


def _compared_tokens(document: PackedDocument, keeps_logits: bool) -> torch.Tensor:
    """Which tokens of a document's piece are compared, from 0: all, or some at equal distances, with both ends."""
    length = document.end - document.begin
    count = min(length, COMPARED_TOKENS) if keeps_logits else length
    return torch.linspace(0, length - 1, count).round().long()


def logits_of(outputs: Any) -> torch.Tensor:
    """(1, T, vocabulary); of a reward model its scores, (1, T, 1). Raises ConfigError if there are none."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3:
        raise ConfigError(f"the callable returned {type(outputs).__name__} without logits; return the model's outputs")
    return logits


def _nan_highest(value: float) -> float:
    """A key for `max` by which NaN is the largest number, so that it is not overlooked."""
    return float("inf") if value != value else value
