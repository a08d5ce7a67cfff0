"""Says what encoding found: notes for the user, and rejects.jsonl."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.config.mask import MaskConfig, SourceMaskConfig
from ...schemas.escape import escape_json, escape_line
from ...schemas.units import plural
from ...stages.mask.policy import Mask
from ...stages.mask.sampling_proof import Outcome
from ...stages.prep import sharegpt
from ...stages.tokenize.content_check import MOST, OTHERS, ROLES, TOKENS
from ...stages.tokenize.encode import UNPROVED
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.engines import tokenizer_head
from ..inputs.blocks import Block, InputFile
from ..inputs.source_formats import what_it_is
from .driver import Encoded
from .first_look import EARLIER, SAMPLED, first_blocks
from .parts import PartRecord
from .prepared import Prepared

_KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")
_NOT_SAMPLED = {
    Outcome.PREFIX: "the text before {} is not the prompt that a model would be given",
    Outcome.MISSING: "no stop token ends {}, so the model does not learn to stop there",
}
"""What is said of turns that are not what a model would sample."""


class Seen(NamedTuple):
    """A block, and what was found in it."""

    file: InputFile
    block: Block
    counts: EncodeCounts


class Masked(NamedTuple):
    """What was found in the sources that have a mask."""

    key: str
    """Where the configuration has the mask: `mask`, or `sources.1.mask`."""
    mask: MaskConfig
    seen: list[Seen]


def _seen(files: Sequence[InputFile], counts: Iterable[EncodeCounts]) -> list[Seen]:
    """What was found in each block of some files, in order."""
    blocks = ((file, block) for file in files for block in file.blocks)
    return [Seen(file, block, each) for (file, block), each in zip(blocks, counts, strict=True)]


def _of_records(files: Sequence[InputFile], encoded: Encoded) -> list[Seen]:
    return _seen(files, (record.counts for record in encoded.records))


def by_mask(config: RunConfig, seen: Iterable[Seen]) -> Iterator[Masked]:
    """Yield the sources that take the run's mask together, then each that has its own."""
    groups: dict[str, Masked] = {}
    of_source: dict[str, Masked] = {}
    for number, source in enumerate(config.sources):
        key = "mask" if source.mask == SourceMaskConfig() else f"sources.{number}.mask"
        of_source[source.name] = groups.setdefault(key, Masked(key, config.mask_of(source), []))
    for one in seen:
        of_source[one.file.source].seen.append(one)
    yield from sorted(groups.values(), key=lambda group: group.key != "mask")


def notes(config: RunConfig, prepared: Prepared, encoded: Encoded) -> Iterator[str]:
    """Yield sentences about conversations that are not trained as the user may expect."""
    seen = _of_records(prepared.joined, encoded)
    yield from unlocated(config, prepared.joined, encoded)
    roles, first, _ = found(seen, ROLES)
    if roles:
        said = "; ".join(f"{plural(n, 'row')}: role {name!r}{_meant(name)}" for name, n in roles.most_common(MOST))
        stop = "" if said.endswith("?") else "."
        yield f"{said}{stop} The first: {first}. No mask trains these roles; rename those that are misspelt"
    tokens, first, _ = found(seen, TOKENS)
    if tokens:
        names = ", ".join(f"{name} ({rows:,})" for name, rows in tokens.most_common(MOST))
        then = "These become real special tokens (docs/masks.md)"
        yield f"conversations with special tokens in contents: {names}. The first: {first}. {then}"
    masks = list(by_mask(config, _seen(first_blocks(prepared.joined), prepared.look.counts)))
    for one in masks:
        yield from _not_sampled(one)
    if any(form.make().needs_template for form in prepared.formats.values()):
        yield from _stops([one for one in masks if one.mask.policy != "all"], prepared)


def unlocated(config: RunConfig, files: Sequence[InputFile], encoded: Encoded) -> Iterator[str]:
    """Yield sentences about conversations that the mask leaves out because their turns are not located."""
    for key, mask, seen in by_mask(config, _of_records(files, encoded)):
        count, first, why = found(seen, UNPROVED)
        if not count or not Mask.of(mask).needs_turns:
            continue
        what = (
            "the assistant's turns, or thoughts and tool calls in them, cannot be located with certainty in "
            f"{plural(count.total(), 'conversation')}, which this mask needs. The first: {first}: {why}"
        )
        fix = (
            "to use them, put {% generation %} and {% endgeneration %} around turns in the template, or take "
            f"{key}=completion"
        )
        yield f"{what}. They are left out; {fix}"


def found(seen: Iterable[Seen], *kinds: str, names: Collection[str] | None = None) -> tuple[Counter[str], str, str]:
    """The names that some kinds were found under, with their counts; the first place in words; and its detail.

    Args:
        names: those that count; None for all.
    """
    total, first, detail = Counter[str](), "", ""
    for file, block, counts in seen:
        for kind in kinds:
            named = counts.found.get(kind, {})
            total.update({name: count for name, count in named.items() if names is None or name in names})
        if total and not first:
            one = next(one for one in counts.places if one.kind in kinds and (names is None or one.name in names))
            file, line = file.at(block, one.line)
            first, detail = f"{file.shown}, line {line}", one.detail
    return total, first, detail


def _meant(role: str) -> str:
    """`; did you mean 'assistant'?`, or "" if no role is near."""
    name = role.strip().lower()
    near = sharegpt.ROLES.get(name) or next(iter(get_close_matches(name, _KNOWN_ROLES, n=1)), None)
    return f"; did you mean {near!r}?" if near and role != OTHERS else ""


def _not_sampled(masked: Masked) -> Iterator[str]:
    """Describe the turns of the first rows that are not what a model would sample, if there are any."""
    key, mask, seen = masked
    # `all` trains headers too, so nothing is compared.
    kinds = {"all": (), "assistant": (SAMPLED, EARLIER)}.get(mask.policy, (SAMPLED,))
    tried, _, _ = found(seen, *kinds)
    wrong = [one for one in _NOT_SAMPLED if tried[one]]
    if not wrong:
        return
    said = "; ".join(_NOT_SAMPLED[one].format(plural(tried[one], "turn")) for one in wrong)
    _, first, message = found(seen, *kinds, names=wrong)
    advice = ""
    if Outcome.PREFIX in wrong:
        own = "expand=per_turn" + (f" with {key}=completion" if mask.policy == "assistant" else "")
        advice = f". For an example of each turn, with the prompt that a model would be given: {own}"
    turns = plural(tried.total(), "turn")
    yield f"of {turns} of the assistant in the first rows: {said}. The first: {first}, message {message}{advice}"


def _stops(masks: Sequence[Masked], prepared: Prepared) -> Iterator[str]:
    """Say that the template does not end turns itself, or ends them with tokens at which a generation would not
    stop.

    Args:
        masks: those that train turns.
    """
    spec, look = prepared.spec, prepared.look
    if spec.tokenizer.chat_template is None or not masks:
        return
    template = f"the chat template '{spec.tokenizer.template_name}'"
    if look.header_stops and (keys := [one.key for one in masks if one.mask.train_end]):
        tokens = " or ".join(escape_line(name) for name in look.header_stops)
        yield (
            f"{template} ends no turn of the assistant; {tokens} in the next message's header does, which only "
            f"{keys[0]}.stop=auto trains. A last turn has no header after it, and so no stop token"
        )
    if unnamed := spec.stop_ids(look.stops)[1]:
        names = {token.id: token.content for token in tokenizer_head(spec.tokenizer.json).added_tokens}
        yield (
            f"{template} ends turns of the assistant with {', '.join(escape_line(names[id]) for id in unnamed)}, at "
            "which a generation with this model would not stop. The template is believed; add "
            f"{', '.join(map(str, unnamed))} to eos_token_id in the model's generation_config.json"
        )


def reject_lines(
    files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Mapping[str, Collection[str]]
) -> bytes:
    """Return the content of rejects.jsonl: rows that cannot be used, by file and line, with the reason.

    Args:
        files: as they were encoded.
        records: one per block, in the order of `files`.
        reasons: of each source; see `PartRecord.refusals`.
    """
    lines = []
    for file, line, sub, reason, detail in _refusals(files, records, reasons):
        entry = {"source": file.source, "file": file.shown, "line": line, "reason": reason, "detail": detail}
        lines.append(msgspec.json.encode(entry | ({"example": sub} if sub >= 0 else {})) + b"\n")
    return escape_json(b"".join(lines))


def first_reject(
    files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Mapping[str, Collection[str]]
) -> str:
    """Describe the first reject in a sentence, for messages; "" if there is none."""
    for file, line, _, reason, detail in _refusals(files, records, reasons):
        said = f" The first: {file.shown}, line {line}: {reason}: {detail.removesuffix('.')}."
        return said + what_it_is(file, reason)
    return ""


def _refusals(
    files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Mapping[str, Collection[str]]
) -> Iterator[tuple[InputFile, int, int, str, str]]:
    """(file, line in it from 1, example of the row or -1, reason, detail)."""
    blocks = [(file, block) for file in files for block in file.blocks]
    for (file, block), record in zip(blocks, records, strict=True):
        for row, sub, reason, detail in record.refusals(reasons[file.source]):
            yield *file.at(block, row), sub, reason, detail
