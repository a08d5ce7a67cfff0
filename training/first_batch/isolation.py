"""Whether a model keeps the documents of a batch apart.

`probe` tests a model on documents of its own, one by one; this is the same test on the batch that trains, cheap enough
for long rows: two backward passes for each bit of the documents' numbers, 2·⌈log₂ D⌉, which show all pairs of D
documents in both directions.
"""

from itertools import product
from typing import Any

import numpy as np
import torch

from ..attention.influence import UntestedError, influences
from ..attention.probe_setup import comparable_gradients, undisturbed
from ..rank_info import highest_of_ranks
from .documents import FoundDocument


def find_leak(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, int], documents: list[FoundDocument]
) -> str:
    """Which document another one sees, or why that could not be tested; empty if documents are kept apart.

    On several ranks all must call it, with the batches of the same step. Gradients, modes, buffers and random
    generators are afterwards as they were.

    Args:
        module: what the trainer calls.
        args, kwargs: with which it calls it.
        shape: (B, T) of the batch.
        documents: in the batch, at least one.
    """
    device = next(module.parameters()).device
    numbers = np.full(shape, -1)  # (B, T) the number of each token's document; -1 for padding and gaps
    for number, document in enumerate(documents):
        numbers[document.place] = number
    number_at = torch.from_numpy(numbers).to(device)
    is_inside = number_at >= 0
    # 5 documents have the numbers 000 to 100 and so 3 bits; a single one is tested with 1 bit, too. All ranks take as
    # many bits as the rank with most documents.
    bits = highest_of_ranks((len(documents) - 1).bit_length() or 1, device)
    # Two groups for each bit: documents whose numbers have a 0 there, and documents with a 1. Any two documents differ
    # in some bit, so some group has the one and not the other. With 3 documents, whose numbers are 00, 01 and 10:
    #     bit 0 is 0: documents 0, 2    bit 0 is 1: document 1
    #     bit 1 is 0: documents 0, 1    bit 1 is 1: document 2
    # A group may be empty, as that of a single document for the value 1; it shows nothing.
    groups = [is_inside & ((number_at >> bit) % 2 == value) for bit, value in product(range(bits), (0, 1))]
    with undisturbed(module), comparable_gradients(module):
        try:
            influence_of_groups = influences(module, lambda: module(*args, **kwargs), groups)
        except UntestedError as error:
            return f"isolation could not be tested: {error}"
    # (B, T): how strongly the hidden states of the group depend on each token.
    for group, influence in zip(groups, influence_of_groups, strict=True):
        if not bool(influence[is_inside].isfinite().all()):
            return "isolation could not be tested: gradients are not numbers (NaN or infinite)"
        if bool(group.any()) and not float(influence[group].max()) > 0:
            return "isolation could not be tested: documents have no gradient with respect to themselves"
        leak = influence.masked_fill(group | ~is_inside, 0)  # what is left are tokens of documents outside of the group
        if float(leak.max()) > 0:
            document = documents[
                numbers.flat[int(leak.argmax())]
            ]  # argmax and flat count tokens of all rows end to end
            return (
                f"other documents see the one at tokens {document.begin:,} to {document.end:,} of row {document.row} "
                f"of the batch (gradient {float(leak.max()):.2g}, and must be 0)"
            )
    return ""
