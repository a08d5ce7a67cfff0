"""Reports conversations to which a mask cannot be applied, or ends the run."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from ...schemas.config.config import MaskConfig
from ...schemas.config.hints import setting
from ...schemas.errors import InputError
from ...schemas.units import plural
from ...stages.mask.policy import Mask
from ...stages.prep.sharegpt import ROLES
from ...stages.template.losses import LOST
from ...stages.tokenize.content_check import MOST, OTHERS
from ..inputs.scan import InputFile
from .driver import Encoded

_ALLOWED = re.compile(r"tokenizer\.allow_lost: \[([a-z_, ]+)\]$")
"""What the detail of a reject ends with."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


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
    roles, first = _named(files, encoded, "roles")
    if roles:
        said = "; ".join(f"{plural(rows, 'row')}: role {name!r}{_meant(name)}" for name, rows in roles)
        stop = "" if said.endswith("?") else "."
        yield f"{said}{stop} The first: {first}. No mask trains these roles; rename those that are misspelt"
    tokens, first = _named(files, encoded, "control")
    if tokens:
        names = ", ".join(f"{name} ({rows:,})" for name, rows in tokens)
        then = "These become real special tokens (docs/masks.md)"
        yield f"conversations with special tokens in contents: {names}. The first: {first}. {then}"


def _named(files: Sequence[InputFile], encoded: Encoded, field: str) -> tuple[list[tuple[str, int]], str]:
    """The most frequent names that a field of the records counts, with their conversations, and where the first is."""
    counts, first = Counter[str](), ""
    blocks = [(file, block) for file in files for block in file.blocks]
    for (file, block), record in zip(blocks, encoded.records, strict=True):
        found: dict[str, list[int]] = getattr(record, field)
        for name, (rows, _) in found.items():
            counts[name] += rows
        if found and not first:
            file, line = file.at(block, min(row for _, row in found.values()))
            first = f"{file.shown}, line {line}"
    return counts.most_common(MOST), first


def _meant(role: str) -> str:
    """`; did you mean 'assistant'?`, or "" if no role is near."""
    name = role.strip().lower()
    near = ROLES.get(name) or next(iter(get_close_matches(name, _ROLES, n=1)), None)
    return f"; did you mean {near!r}?" if near and role != OTHERS else ""
