"""Prompts alone: what a model is given at a turn of the assistant, rendered and tokenized without what follows.

`mask.sampling` compares them with the tokens that are trained on. A model never sees a conversation as it is packed: at
each turn it gets the messages before it, rendered with a generation prompt.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import Example
from ..template.assistant_turns import ASSISTANT
from ..template.owned import loss_weight
from ..template.render import Renderer
from .engines import Engine

SAMPLE = 0x1FF
"""One conversation in 512 is tried: the first turn of its completion, and one turn before it."""


class PromptAlone(NamedTuple):
    """The prompt of one turn of a conversation."""

    document: int
    """The conversation's number in its batch."""
    message: int
    """Index of the turn's message."""
    earlier: bool
    """Whether the turn comes before the completion."""
    ids: NDArray[np.int32] | None
    """The prompt's tokens; None if the template refuses the messages before the turn."""


def digest_bits(digests: Sequence[bytes], place: int) -> NDArray[np.uint16]:
    """(N,) bytes `place` and `place` + 1 of each digest of 16 bytes, of which the first is the lower one.

    Args:
        place: an even number.
    """
    return np.frombuffer(b"".join(digests), "<u2").reshape(-1, 8)[:, place // 2]


def chosen_turns(example: Example, digest: bytes, *, every: bool) -> Iterator[int]:
    """Yield the messages whose turns are tried; none of an example without messages.

    Args:
        digest: of the example's content. So the choice depends on nothing else.
        every: whether to try all turns; else few, as `SAMPLE` says.
    """
    if not every and (digest[2] | digest[3] << 8) & SAMPLE:
        return
    prompt, completion = example.prompt, example.completion
    if isinstance(prompt, str) or isinstance(completion, str) or example.ids is not None:
        return
    prompt, completion = prompt or [], completion or []
    turns = [
        index
        for index, message in enumerate([*prompt, *completion])
        if message.get("role") == ASSISTANT and loss_weight(message)
    ]
    if every:
        yield from turns
        return
    earlier = [index for index in turns if index < len(prompt)]
    if earlier:
        yield earlier[digest[4] % len(earlier)]
    yield from turns[len(earlier) : len(earlier) + 1]


def prompts_alone(
    examples: Sequence[Example], digests: Sequence[bytes], renderer: Renderer, engine: Engine, *, every: bool
) -> list[PromptAlone]:
    """The prompts of the chosen turns of a batch.

    Args:
        examples: of one batch, in order.
        digests: of each example.
        every: see `chosen_turns`.

    Raises:
        TemplateError: see `Renderer.before`.
    """
    out: list[PromptAlone] = []
    texts: list[str | None] = []
    chosen = range(len(examples)) if every else np.flatnonzero(digest_bits(digests, 2) & SAMPLE == 0).tolist()
    for document in chosen:
        example = examples[document]
        if turns := list(chosen_turns(example, digests[document], every=every)):
            prompt, completion = example.prompt or [], example.completion or []
            assert not isinstance(prompt, str)
            assert not isinstance(completion, str)
            texts += renderer.before([*prompt, *completion], turns, example.tools)
            out += [PromptAlone(document, message, message < len(prompt), None) for message in turns]
    if not texts:
        return out
    ids, offsets = engine.encode([text or "" for text in texts])
    return [
        one._replace(ids=ids[offsets[number] : offsets[number + 1]].astype(np.int32)) if texts[number] else one
        for number, one in enumerate(out)
    ]
