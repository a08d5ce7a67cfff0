"""Conversations that a mask cannot train as it means to: said, left out, or the end of the run."""

from collections.abc import Sequence

from ..schemas.config import RunConfig
from ..schemas.errors import InputError
from ..schemas.hints import setting
from .encoding import EncodedInputs
from .selecting import mask_of
from .sources import InputFile


def check_proved(config: RunConfig, files: Sequence[InputFile], encoded: EncodedInputs) -> str | None:
    """Say what a mask about turns leaves out because the turns are not proved; None where that is nothing.

    Args:
        files: whose blocks are encoded, in their order.

    Raises:
        InputError: `mask.on_unproved: error`, and there is such a conversation.
    """
    count = sum(record.unproved for record in encoded.records)
    if not count or not mask_of(config).needs_turns:
        return None
    blocks = [(file, block) for file in files for block in file.blocks]
    pairs = zip(blocks, encoded.records, strict=True)
    (file, block), record = next(pair for pair in pairs if pair[1].unproved_rows)
    line, _, why = record.unproved_rows[0]
    what = (
        f"of {count:,} conversations nothing says surely where the assistant's turns lie, which mask "
        f"{config.mask.policy} has to know. The first: {file.shown}, line {block.first_line + line + 1}: {why}"
    )
    marks = "put {% generation %} and {% endgeneration %} around them in the template"
    mend = f"{marks}, or take {setting('mask', 'completion')}"
    if config.mask.on_unproved == "error":
        leave = setting("mask.on_unproved", "reject")
        raise InputError(f"{what}. To leave them out: {leave}; to use them, {mend}")
    return f"{what}. They are left out; to use them, {mend}"


def check_rewritten(config: RunConfig, files: Sequence[InputFile], encoded: EncodedInputs) -> str | None:
    """Say whose prompt alone is rendered otherwise than within the conversation; None where nobody's is.

    Args:
        files: whose blocks are encoded, in their order.
    """
    count = sum(record.rewritten for record in encoded.records)
    if not count or config.mask.policy == "all":
        return None
    blocks = [(file, block) for file in files for block in file.blocks]
    pairs = zip(blocks, encoded.records, strict=True)
    (file, block), record = next(pair for pair in pairs if pair[1].rewritten_rows)
    line = block.first_line + record.rewritten_rows[0][0]
    what = (
        f"the chat template '{encoded.spec.template_name}' renders the prompts of {count:,} conversations otherwise "
        f"alone than within the conversation. The first: {file.shown}, line {line + 1}"
    )
    if config.mask.on_rewritten == "reject":
        return f"{what}. They are left out"
    return (
        f"{what}. Their completions begin with the assistant's own words (TRL would mask as many tokens as the prompt "
        f"alone has, whatever they say). To leave them out: {setting('mask.on_rewritten', 'reject')}"
    )
