"""Reports conversations to which a mask cannot be applied, or ends the run."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ...schemas.config.config import MaskConfig
from ...schemas.config.hints import setting
from ...schemas.errors import InputError
from ...schemas.units import plural
from ...stages.mask.policy import Mask
from ...stages.template.dropped_content import LOST
from ...stages.tokenize.content_check import MOST
from ..inputs.blocks import InputFile
from .driver import Encoded

_ALLOWED = re.compile(r"tokenizer\.allow_lost: \[([a-z_, ]+)\]$")
"""What the detail of a reject ends with."""


def check_proved(mask: MaskConfig, files: Sequence[InputFile], encoded: Encoded) -> str | None:
    """Describe the conversations that a mask leaves out because their turns could not be located; None if there are
    none.

    Args:
        files: the files as they were encoded, in order.

    Raises:
        InputError: `mask.on_unproved: error`, and there is such a conversation.
    """
    count = sum(record.unproved for record in encoded.records)
    if not count or not Mask.of(mask).needs_turns:
        return None
    blocks = [(file, block) for file in files for block in file.blocks]
    pairs = zip(blocks, encoded.records, strict=True)
    (file, block), record = next(pair for pair in pairs if pair[1].unproved_rows)
    row, _, why = record.unproved_rows[0]
    file, line = file.at(block, row)
    what = (
        f"the assistant's turns cannot be located with certainty in {plural(count, 'conversation')}, which mask "
        f"{mask.policy} needs. The first: {file.shown}, line {line}: {why}"
    )
    marks = "put {% generation %} and {% endgeneration %} around them in the template"
    fix = f"{marks}, or take {setting('mask', 'completion')}"
    if mask.on_unproved == "error":
        leave = setting("mask.on_unproved", "reject")
        raise InputError(f"{what}. To leave them out: {leave}; to use them, {fix}")
    return f"{what}. They are left out; to use them, {fix}"


def check_parts(mask: MaskConfig, files: Sequence[InputFile], encoded: Encoded) -> str | None:
    """Describe the conversations that a mask leaves out because thoughts or tool calls could not be located in their
    turns; None if there are none.

    Args:
        files: the encoded files, in order.

    Raises:
        InputError: `mask.on_unproved: error`, and there is such a conversation.
    """
    count = sum(record.mixed for record in encoded.records)
    if not count or not Mask.of(mask).needs_parts:
        return None
    blocks = [(file, block) for file in files for block in file.blocks]
    (file, block), record = next(pair for pair in zip(blocks, encoded.records, strict=True) if pair[1].mixed_rows)
    row, _, why = record.mixed_rows[0]
    file, line = file.at(block, row)
    what = (
        f"thoughts or tool calls cannot be located with certainty in turns of {plural(count, 'conversation')}, which "
        f"mask.thoughts and mask.tool_calls need. The first: {file.shown}, line {line}: {why}"
    )
    fix = "take a template that shows where they lie, or leave mask.thoughts and mask.tool_calls at train"
    if mask.on_unproved == "error":
        raise InputError(f"{what}. To leave them out: {setting('mask.on_unproved', 'reject')}; to use them, {fix}")
    return f"{what}. They are left out; to use them, {fix}"


def check_lost(encoded: Encoded) -> str | None:
    """Say what must be allowed to keep all rows that the template cuts; None if there are none."""
    count, lost = 0, set[str]()
    for record in encoded.records:
        count += record.rejected.get(LOST, 0) + record.refused.get(LOST, 0)
        for _, _, reason, detail in record.rejects:
            if reason == LOST:
                lost.update(*(found.split(", ") for found in _ALLOWED.findall(detail)[-1:]))
    if not lost:
        return None
    return (
        f"the chat template leaves out content of {plural(count, 'conversation')}, which are rejected. To lose it "
        f"where that can be allowed: {setting('tokenizer.allow_lost', sorted(lost))}"
    )


def check_contents(files: Sequence[InputFile], encoded: Encoded) -> Iterator[str]:
    """Say which unknown roles conversations have, and which special tokens their contents hold.

    Args:
        files: the files as they were encoded, in order.
    """
    blocks = [(file, block) for file in files for block in file.blocks]
    for field, what, then in (
        ("roles", "an unknown role", "The template writes it as it stands; only assistant is the assistant's"),
        ("control", "special tokens in contents", "These become real special tokens (docs/masks.md)"),
    ):
        counts, first = Counter[str](), ""
        for (file, block), record in zip(blocks, encoded.records, strict=True):
            found: dict[str, list[int]] = getattr(record, field)
            for name, (rows, _) in found.items():
                counts[name] += rows
            if found and not first:
                file, line = file.at(block, min(row for _, row in found.values()))
                first = f"{file.shown}, line {line}"
        if counts:
            names = ", ".join(f"{name} ({rows:,})" for name, rows in counts.most_common(MOST))
            yield f"conversations with {what}: {names}. The first: {first}. {then}"


def check_rewritten(mask: MaskConfig, files: Sequence[InputFile], encoded: Encoded) -> str | None:
    """Describe the conversations whose prompt alone is rendered differently than within the conversation; None if there
    are none.

    Args:
        files: the files as they were encoded, in order.
    """
    count = sum(record.rewritten for record in encoded.records)
    if not count or mask.policy == "all":
        return None
    blocks = [(file, block) for file in files for block in file.blocks]
    pairs = zip(blocks, encoded.records, strict=True)
    (file, block), record = next(pair for pair in pairs if pair[1].rewritten_rows)
    file, line = file.at(block, record.rewritten_rows[0][0])
    what = (
        f"the chat template '{encoded.spec.template_name}' renders the prompts of {plural(count, 'conversation')} "
        f"differently alone than within the conversation. The first: {file.shown}, line {line}"
    )
    if mask.on_rewritten == "reject":
        return f"{what}. They are left out"
    return (
        f"{what}. Their completions begin with the assistant's own words (TRL would mask as many tokens as the prompt "
        f"alone has, even if they are not the prompt's). To leave them out: {setting('mask.on_rewritten', 'reject')}"
    )
