"""Says what encoding found: notes for the user."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from ...schemas.config.config import RunConfig
from ...schemas.config.source import MaskConfig, SourceMaskConfig
from ...schemas.escape import escape_line
from ...schemas.tables.masks import POLICIES
from ...schemas.tables.reasons import UNPROVED
from ...schemas.units import plural
from ...stages.mask.policy import Mask
from ...stages.mask.sampling_proof import Outcome
from ...stages.prep import sharegpt
from ...stages.tokenize.encode_counts import (
    COLUMNS_NOT_READ,
    KEYS_NOT_READ,
    MOST_ROLES,
    NOT_JSON,
    OTHERS,
    ROLES,
    EncodeCounts,
)
from ...stages.tokenize.vocabulary import tokenizer_head
from ..inputs.blocks import Block, InputFile
from .driver import Encoded, Prepared, first_blocks
from .first_look import EARLIER, SAMPLED

_NOT_SAMPLED = {
    Outcome.PREFIX: "the text before {} is not the prompt that a model would be given",
    Outcome.MISSING: "no stop token ends {}, so the model does not learn to stop there",
}
"""What is said of turns that are not what a model would sample."""
_MOST_NAMES = 20
"""Maximum number of columns that are not read to name; the report lists more."""


class Seen(NamedTuple):
    """A block, what was found in it, and the mask of its source."""

    file: InputFile
    block: Block
    counts: EncodeCounts
    mask: MaskConfig
    key: str
    """Where the configuration has the mask: `mask`, or `sources.1.mask`."""


def seen_blocks(config: RunConfig, files: Sequence[InputFile], counts: Iterable[EncodeCounts]) -> list[Seen]:
    """What was found in each block of some files, in order."""
    masks = {}
    for number, one in enumerate(config.sources):
        key = "mask" if one.mask == SourceMaskConfig() else f"sources.{number}.mask"
        masks[one.name] = config.mask_of(one), key
    blocks = ((file, block) for file in files for block in file.blocks)
    return [Seen(file, block, each, *masks[file.source]) for (file, block), each in zip(blocks, counts, strict=True)]


def notes(config: RunConfig, prepared: Prepared, encoded: Encoded) -> Iterator[str]:
    """Yield sentences about conversations that are not trained as the user may expect."""
    if (said := unlocated(config, prepared.joined, encoded)) is not None:
        yield said
    seen = seen_blocks(config, prepared.joined, (record.counts for record in encoded.records))
    roles, first, _ = _found(seen, ROLES)
    if roles:
        each = roles.most_common(MOST_ROLES)
        said = "; ".join(f"{plural(number, 'row')}: role {name!r}{_meant(name)}" for name, number in each)
        stop = "" if said.endswith("?") else "."
        yield f"{said}{stop} The first: {first}. No mask trains these roles; rename those that are misspelt"
    yield from _unread(config, seen)
    calls, first, _ = _found(seen, NOT_JSON)
    if count := calls.total():
        yield (
            f"the arguments of {plural(count, 'tool call')} are a text that is not the JSON of an object, and stay "
            f"text. The first: {first}"
        )
    conversational = any(not form.make().is_plain for form in prepared.formats.values())
    if conversational and prepared.look.call_arguments == "text":
        yield (
            f"the chat template '{prepared.spec.tokenizer.template_name}' takes the arguments of tool calls only as "
            "text, so it gets them as JSON text, whatever the rows have"
        )
    looked = seen_blocks(config, first_blocks(prepared.joined), prepared.look.counts)
    trained = [one for one in looked if not POLICIES[one.mask.policy].trains_every_token]  # which trains headers too
    yield from _not_sampled(trained)
    if trained and any(form.make().needs_template for form in prepared.formats.values()):
        yield from _unnamed_stops(prepared)


def _unread(config: RunConfig, seen: Sequence[Seen]) -> Iterator[str]:
    """Say once for each source which columns, and which keys of messages, are not read."""
    for source in config.sources:
        parts = []
        for kind, prefix in ((COLUMNS_NOT_READ, ""), (KEYS_NOT_READ, "of messages: ")):
            found = (one.counts.found.get(kind, {}) for one in seen if one.file.source == source.name)
            names = sorted(set().union(*found))
            more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            if names:
                parts.append(f"{prefix}{', '.join(names[:_MOST_NAMES])}{more}")
        if parts:
            yield f"source {source.name}: not read: {'; '.join(parts)}"


def unlocated(config: RunConfig, files: Sequence[InputFile], encoded: Encoded) -> str | None:
    """A sentence about conversations that the mask leaves out because their turns are not located; None if there are
    none.
    """
    seen = seen_blocks(config, files, (record.counts for record in encoded.records))
    needing = [one for one in seen if Mask.of(one.mask).needs_turns]
    count, first, why = _found(needing, UNPROVED)
    if not count:
        return None
    key = next(one.key for one in needing if UNPROVED in one.counts.found)
    return (
        "the assistant's turns, or thoughts and tool calls in them, cannot be located with certainty in "
        f"{plural(count.total(), 'conversation')}, which the mask needs. The first: {first}: {why}. They are left "
        "out; to use them, put {% generation %} and {% endgeneration %} around turns in the template, or take "
        f"{key}=completion"
    )


def _found(seen: Iterable[Seen], *kinds: str, names: Collection[str] | None = None) -> tuple[Counter[str], str, str]:
    """The names that some kinds were found under, if they are among `names`, with their counts; the first place in
    words; and its detail.
    """
    total, first, detail = Counter[str](), "", ""
    for one in seen:
        for kind in kinds:
            named = one.counts.found.get(kind, {})
            total.update({name: count for name, count in named.items() if names is None or name in names})
        if total and not first:
            of = (place for place in one.counts.places if place.kind in kinds)
            place = next(place for place in of if names is None or place.name in names)
            file, line = one.file.at(one.block, place.line)
            first, detail = f"{file.shown}, line {line}", place.detail
    return total, first, detail


def _meant(role: str) -> str:
    """What to do about a role: `; did you mean 'assistant'?`, or "" if no role is near."""
    if role.strip().lower() in sharegpt.CALLS_AND_RESULTS:
        return "; format: sharegpt with keys: {conversations: messages} reads it"
    near = sharegpt.nearest_role(role)
    return f"; did you mean {near!r}?" if near and role != OTHERS else ""


def _not_sampled(trained: Sequence[Seen]) -> Iterator[str]:
    """Describe the turns of the first rows that are not what a model would sample: of all if the policy is `assistant`,
    else of those of completions.
    """
    every = [one for one in trained if POLICIES[one.mask.policy].trains_earlier_turns]
    for seen, kinds in ((every, (SAMPLED, EARLIER)), ([one for one in trained if one not in every], (SAMPLED,))):
        tried, _, _ = _found(seen, *kinds)
        wrong = [one for one in _NOT_SAMPLED if tried[one]]
        if not wrong:
            continue
        said = "; ".join(_NOT_SAMPLED[one].format(plural(tried[one], "turn")) for one in wrong)
        _, first, message = _found(seen, *kinds, names=wrong)
        advice = ""
        if Outcome.MISSING in wrong and any(one.mask.stop != "auto" for one in seen):
            advice = ". mask.stop=auto trains a stop token that stands in the next message's header"
        if Outcome.PREFIX in wrong:
            own = "expand=per_turn" + (f" with {seen[0].key}=completion" if EARLIER in kinds else "")
            advice += f". For an example of each turn, with the prompt that a model would be given: {own}"
        turns = plural(tried.total(), "turn")
        yield f"of {turns} of the assistant in the first rows: {said}. The first: {first}, message {message}{advice}"


def _unnamed_stops(prepared: Prepared) -> Iterator[str]:
    """Say that the template ends turns with tokens at which a generation would not stop."""
    spec = prepared.spec
    if unnamed := spec.stop_ids(prepared.look.stops)[1]:
        names = {token.id: token.content for token in tokenizer_head(spec.tokenizer.json).added_tokens}
        yield (
            f"the chat template '{spec.tokenizer.template_name}' ends turns of the assistant with "
            f"{', '.join(escape_line(names[id]) for id in unnamed)}, at which a generation with this model would not "
            f"stop. The template is believed; add {', '.join(map(str, unnamed))} to eos_token_id in the model's "
            "generation_config.json"
        )
