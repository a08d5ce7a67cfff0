"""Says what encoding found: notes for the user."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

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
from .driver import Encoded, Prepared
from .engine_choice import first_files
from .first_look import COMPLETION_TURNS, EARLIER_TURNS

_NOT_SAMPLED = {
    Outcome.PREFIX: "the text before {} is not the prompt that a model would be given",
    Outcome.MISSING: "no stop token ends {}, so the model does not learn to stop there",
}
"""How notes describe turns that are not what a model would sample."""
_MOST_NAMES = 20
"""Maximum number of columns that are not read to name; the report lists more."""


@dataclass(frozen=True, slots=True)
class BlockFindings:
    """What was found in a block, and the mask of its source."""

    file: InputFile
    block: Block
    counts: EncodeCounts
    mask: MaskConfig
    mask_key: str
    """Where the configuration has the mask: `mask`, or `sources.1.mask`."""


@dataclass(frozen=True, slots=True)
class _Tally:
    """What several blocks have of some kinds."""

    names: Counter[str]
    """How often each name was found; see `EncodeCounts.by_kind`."""
    place: str
    """The first place in words; "" if there is none."""
    detail: str
    """What was noted at that place."""


def findings_by_block(
    config: RunConfig, files: Sequence[InputFile], counts: Iterable[EncodeCounts]
) -> list[BlockFindings]:
    """What was found in each block of some files, in order.

    Args:
        counts: one per block, in the order of `files`.
    """
    masks = dict[str, MaskConfig]()
    mask_keys = dict[str, str]()
    for number, source in enumerate(config.sources):
        masks[source.name] = config.mask_of(source)
        # A source that sets no key of its own mask has that of the run.
        mask_keys[source.name] = "mask" if source.mask == SourceMaskConfig() else f"sources.{number}.mask"
    blocks = ((file, block) for file in files for block in file.blocks)
    return [
        BlockFindings(file, block, block_counts, masks[file.source], mask_keys[file.source])
        for (file, block), block_counts in zip(blocks, counts, strict=True)
    ]


def describe_findings(config: RunConfig, prepared: Prepared, encoded: Encoded) -> Iterator[str]:
    """Yield sentences about rows that are not read or trained as the user may expect."""
    unlocated = describe_unlocated_turns(config, prepared.joined, encoded)
    if unlocated is not None:
        yield unlocated
    findings = findings_by_block(config, prepared.joined, (record.counts for record in encoded.records))
    yield from _describe_roles(findings)
    yield from _describe_not_read(config, findings)
    calls = _tally(findings, [NOT_JSON])
    if calls.names:
        yield (
            f"the arguments of {plural(calls.names.total(), 'tool call')} are a text that is not the JSON of an "
            f"object, and stay text. The first: {calls.place}"
        )
    is_conversational = any(settings.conversational for settings in prepared.settings.values())
    if is_conversational and prepared.choice.call_arguments == "text":
        yield (
            f"the chat template '{prepared.spec.tokenizer.template_name}' takes the arguments of tool calls only as "
            "text, so it gets them as JSON text, whatever the rows have"
        )
    first_rows = findings_by_block(config, first_files(prepared.joined), prepared.choice.counts)
    # A policy that trains every token trains headers too, so that it does not depend on where turns begin.
    by_turns = [block for block in first_rows if not POLICIES[block.mask.policy].trains_every_token]
    yield from _describe_not_sampled(by_turns)
    # If at least one source has nothing but conversations.
    if by_turns and any(form.make().needs_template for form in prepared.formats.values()):
        yield from _describe_unnamed_stops(prepared)


def describe_unlocated_turns(config: RunConfig, files: Sequence[InputFile], encoded: Encoded) -> str | None:
    """A sentence about conversations that the mask leaves out because their turns are not located; None if there are
    none.
    """
    findings = findings_by_block(config, files, (record.counts for record in encoded.records))
    needing_turns = [block for block in findings if Mask.of(block.mask).needs_turns]
    unlocated = _tally(needing_turns, [UNPROVED])
    if not unlocated.names:
        return None
    # Of several sources, the key of the first one that the sentence is about.
    mask_key = next(block.mask_key for block in needing_turns if UNPROVED in block.counts.by_kind)
    return (
        "the assistant's turns, or thoughts and tool calls in them, cannot be located with certainty in "
        f"{plural(unlocated.names.total(), 'conversation')}, which the mask needs. The first: {unlocated.place}: "
        f"{unlocated.detail}. They are left out; to use them, put {{% generation %}} and {{% endgeneration %}} around "
        f"turns in the template, or take {mask_key}=completion"
    )


def _describe_roles(findings: Sequence[BlockFindings]) -> Iterator[str]:
    """Name roles that the template does not know."""
    roles = _tally(findings, [ROLES])
    if not roles.names:
        return
    counted = [
        f"{plural(count, 'row')}: role {role!r}{_role_advice(role)}"
        for role, count in roles.names.most_common(MOST_ROLES)
    ]
    sentence = "; ".join(counted)
    # The advice for the last role may be a question.
    full_stop = "" if sentence.endswith("?") else "."
    yield (
        f"{sentence}{full_stop} The first: {roles.place}. No mask trains these roles; rename those that are misspelt"
    )


def _role_advice(role: str) -> str:
    """What to do about a role: which format reads it, or `; did you mean 'assistant'?`; "" if no role is near."""
    # Renaming the role alone would not help: a call would be trained as an answer in words.
    if role.strip().lower() in sharegpt.CALLS_AND_RESULTS:
        return "; format: sharegpt with keys: {conversations: messages} reads it"
    near = sharegpt.nearest_role(role)
    # `OTHERS` stands for many roles that are counted together, and is near to none of them.
    return f"; did you mean {near!r}?" if near and role != OTHERS else ""


def _describe_not_read(config: RunConfig, findings: Sequence[BlockFindings]) -> Iterator[str]:
    """Say once for each source which columns, and which keys of messages, are not read."""
    for source in config.sources:
        blocks = [block for block in findings if block.file.source == source.name]
        lists = []
        for kind, prefix in ((COLUMNS_NOT_READ, ""), (KEYS_NOT_READ, "of messages: ")):
            names: set[str] = set().union(*(block.counts.by_kind.get(kind, {}) for block in blocks))
            if names:
                lists.append(prefix + _list_names(sorted(names)))
        if lists:
            yield f"source {source.name}: not read: {'; '.join(lists)}"


def _list_names(names: Sequence[str]) -> str:
    """`a, b`, or of more names than a note has room for, `a, b, and 3 more`."""
    listed = ", ".join(names[:_MOST_NAMES])
    return f"{listed}, and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else listed


def _describe_not_sampled(findings: Sequence[BlockFindings]) -> Iterator[str]:
    """Describe the turns of the first rows that are not what a model would sample. Turns before the completion are
    looked at only where the policy trains them.
    """
    with_all_turns = [block for block in findings if POLICIES[block.mask.policy].trains_earlier_turns]
    with_completions = [block for block in findings if not POLICIES[block.mask.policy].trains_earlier_turns]
    yield from _describe_turns(with_all_turns, [COMPLETION_TURNS, EARLIER_TURNS])
    yield from _describe_turns(with_completions, [COMPLETION_TURNS])


def _describe_turns(findings: Sequence[BlockFindings], kinds: Collection[str]) -> Iterator[str]:
    """Describe the turns that are not what a model would sample, if there are some.

    Args:
        kinds: `COMPLETION_TURNS` for turns of completions, `EARLIER_TURNS` for the turns before.
    """
    turns = _tally(findings, kinds)
    wrong = [outcome for outcome in _NOT_SAMPLED if turns.names[outcome]]
    if not wrong:
        return
    problems = "; ".join(_NOT_SAMPLED[outcome].format(plural(turns.names[outcome], "turn")) for outcome in wrong)
    # Tallied once more, without the turns that are right, for the place of the first wrong one. The detail of a turn's
    # place is the number of its message.
    first = _tally(findings, kinds, names=wrong)
    advice = ""
    if Outcome.MISSING in wrong and any(block.mask.stop != "auto" for block in findings):
        advice += ". mask.stop=auto trains a stop token that stands in the next message's header"
    if Outcome.PREFIX in wrong:
        settings = "expand=per_turn"
        if EARLIER_TURNS in kinds:  # of several masks, the key of the first
            settings += f" with {findings[0].mask_key}=completion"
        advice += f". For an example of each turn, with the prompt that a model would be given: {settings}"
    yield (
        f"of {plural(turns.names.total(), 'turn')} of the assistant in the first rows: {problems}. The first: "
        f"{first.place}, message {first.detail}{advice}"
    )


def _describe_unnamed_stops(prepared: Prepared) -> Iterator[str]:
    """Say that the template ends turns with tokens at which a generation would not stop."""
    tokenizer = prepared.spec.tokenizer
    _, unnamed_ids = prepared.spec.render.stop_ids(prepared.choice.stop_tokens)
    if unnamed_ids:
        contents = {token.id: token.content for token in tokenizer_head(tokenizer.json).added_tokens}
        yield (
            f"the chat template '{tokenizer.template_name}' ends turns of the assistant with "
            f"{', '.join(escape_line(contents[id]) for id in unnamed_ids)}, at which a generation with this model "
            f"would not stop. The template is believed; add {', '.join(map(str, unnamed_ids))} to eos_token_id in the "
            "model's generation_config.json"
        )


def _tally(
    findings: Iterable[BlockFindings], kinds: Collection[str], *, names: Collection[str] | None = None
) -> _Tally:
    """Count what was found of some kinds, and describe the first place.

    Args:
        names: the only names to count; None for all.
    """
    total = Counter[str]()
    first_place = ""
    first_detail = ""
    for block in findings:
        for kind in kinds:
            for name, count in block.counts.by_kind.get(kind, {}).items():
                if names is None or name in names:
                    total[name] += count
        # The first block that has any has the first place, because its places are sorted by line. Until now, the total
        # has only names of this block.
        if total and not first_place:
            place = next(place for place in block.counts.places if place.kind in kinds and place.name in total)
            # A place counts rows of the block; this is the file of the row, and its line there.
            file, line = block.file.at(block.block, place.line)
            first_place = f"{file.shown}, line {line}"
            first_detail = place.detail
    return _Tally(total, first_place, first_detail)
