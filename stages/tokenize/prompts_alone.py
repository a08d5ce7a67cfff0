"""Prompts alone: what a model is given at a turn of the assistant, rendered and tokenized without what follows.

`mask.sampling_proof` compares them with the tokens that are trained on. A model never sees a conversation as it is
packed: at each turn it gets the messages before it, rendered with a generation prompt.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import Example
from ..template.assistant_turns import ASSISTANT
from ..template.owned import loss_weight
from ..template.render import Renderer
from .engines import Engine


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


def prompts_alone(examples: Sequence[Example], renderer: Renderer, engine: Engine) -> list[PromptAlone]:
    """The prompts of all trained turns of a batch of examples, in order. Plain texts have none.

    Raises:
        TemplateError: see `Renderer.before`.
    """
    out: list[PromptAlone] = []
    texts: list[str | None] = []
    for document, example in enumerate(examples):
        prompt, completion = example.prompt or [], example.completion or []
        if isinstance(prompt, str) or isinstance(completion, str):
            continue
        messages = [*prompt, *completion]
        turns = [
            index for index, message in enumerate(messages) if message.get("role") == ASSISTANT and loss_weight(message)
        ]
        texts += renderer.before(messages, turns, example.tools)
        out += [PromptAlone(document, index, index < len(prompt), None) for index in turns]
    if not texts:
        return out
    tokens = engine.encode([text or "" for text in texts])
    return [one._replace(ids=ids) if text else one for one, text, ids in zip(out, texts, tokens.each(), strict=True)]
