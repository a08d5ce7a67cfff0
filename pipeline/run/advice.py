"""What a run says of its documents: what limits a mixture, of which sources nothing is held out, why nothing is left.
And its advice at the end: trained tokens lost to limits, examples without any, duplicates, rows that another
strategy may save.
"""

from collections.abc import Iterator, Mapping, Sequence

from ...schemas.config.config import RunConfig
from ...schemas.config.mask import SourceMaskConfig
from ...schemas.layout import Certificate
from ...schemas.ledger import Ledger, SourceLedger
from ...schemas.reasons import NOT_DRAWN, OWN, REASONS
from ...schemas.units import plural, share
from ..inputs.source_formats import SourceFormat
from ..pack.copies import later_copies
from ..pack.outcomes import CUT_UNTRAINED
from ..pack.pack import Packed, Selected
from ..pack.table import Table, count_groups

_BY_LENGTH = {CUT_UNTRAINED, "cut_empty", "cut_equal", "overlong", "untrained_piece", "untrained"}
"""Reasons for dropped tokens that limits cause, or that never drop a trained token."""
_MANY_ROWS, _ROWS_SHARE = 10, 0.003
"""`tight` is named where it may save more than both: so many rows, and this share of them."""
_MUCH = 0.01
"""A loss is reported if it exceeds this share of the trained tokens."""
_CHECK = "Check each source's format, and its keys (keys.text=body)"
_SOURCES = 6
"""A note names at most this many sources that do not limit the mixture."""


def closing_advice(
    config: RunConfig, table: Table, formats: Mapping[str, SourceFormat], packed: Packed
) -> Iterator[str]:
    """Yield what the user may want to change, most important first."""
    total = packed.ledger.total()
    if (lost := on_lost(config, total)) is not None:
        yield lost
    if dropped := total.examples_dropped.get(CUT_UNTRAINED, 0):
        yield (
            f"truncation left nothing to train in {dropped:,} of {plural(total.examples_made, 'example')}, which "
            f"{'was' if dropped == 1 else 'were'} dropped; packtrain plan compares other lengths"
        )
    if (mask := on_default_mask(config, formats)) is not None:
        yield mask
    if config.duplicates == "keep" and (count := len(later_copies(table.documents))):
        every = sum(total.examples_packed.values())
        yield (
            f"{count:,} of {every:,} packed examples ({count / every:.1%}) are duplicates of an "
            "earlier one; duplicates=drop drops them"
        )
    if (rows := on_rows(config, [one for split in packed.splits.values() for one in split.windows])) is not None:
        yield rows


def on_rejects(total: SourceLedger, rejects: str) -> str | None:
    """Say how many rows were rejected, and where they are listed; of most of the rows, also why. None if none were.

    Args:
        total: the finished run's ledger over all sources.
        rejects: the path of rejects.jsonl.
    """
    from ..report.collect import rejected_of

    reasons = rejected_of(total)
    rejected = sum(reasons.values())
    if not rejected:
        return None
    what = plural(rejected, "row or example was", "rows or examples were")
    if 2 * rejected <= total.rows_read:
        return f"{what} rejected; see {rejects}"
    most = next(iter(reasons))
    return (
        f"{what} rejected of {plural(total.rows_read, 'row')}. Most often {most}: {REASONS.get(most, OWN)} All: "
        f"{rejects}"
    )


def on_lost(config: RunConfig, total: SourceLedger) -> str | None:
    """Say how many trained tokens the configured length loses; None if at most 1 %.

    The ledger does not say how many trained tokens each reason dropped. So if examples were dropped for other reasons
    than length, only tokens cut off packed examples are counted.

    Args:
        total: the finished run's ledger over all sources.
    """
    asked = total.asked_encoded + total.asked_repeated
    exact = total.tokens_dropped.keys() <= _BY_LENGTH
    # Examples dropped as `untrained` have at most one such token each: the first, which no length would train.
    first = min(total.asked_dropped, total.examples_dropped.get("untrained", 0))
    lost = total.asked_truncated + (total.asked_dropped - first if exact else 0)
    if lost <= _MUCH * asked:
        return None
    least = "" if exact and not first else "at least "
    return (
        f"at max_length {config.truncate.max_length:,}, {least}{share(lost / asked)} of the trained tokens are lost "
        f"({lost:,} of {asked:,})"
    )


def on_rows(config: RunConfig, certificates: Sequence[Certificate]) -> str | None:
    """Say what strategy `tight` may save; None if that is little. The bounds of the plans say it, without another plan.

    Args:
        certificates: of all planning windows.
    """
    rows, bound = sum(one.rows for one in certificates), sum(one.bound for one in certificates)
    if config.pack.strategy != "bfd" or rows - bound <= max(_MANY_ROWS, _ROWS_SHARE * rows):
        return None
    return (
        f"the rows are {rows:,}, and no plan needs fewer than {bound:,}; pack.strategy=tight may save "
        f"up to {share(1 - bound / rows, 2)} of them"
    )


def on_default_mask(config: RunConfig, formats: Mapping[str, SourceFormat]) -> str | None:
    """What the default mask trains of chats, for those who did not choose it; None where a mask was chosen."""
    if "mask" in config.model_fields_set or not {"messages", "sharegpt"} & {form.name for form in formats.values()}:
        return None
    if any(source.expand != "none" or source.mask != SourceMaskConfig() for source in config.sources):
        return None
    return "mask completion, the default, trains the last answer of a chat; mask=assistant trains all"


def selection_notes(config: RunConfig, selected: Selected) -> Iterator[str]:
    """What to say before packing."""
    mixture = on_mixture(config, selected.ledger)
    if mixture is not None:
        yield mixture
    yield from on_holdout(config, selected)


def on_mixture(config: RunConfig, ledger: Ledger) -> str | None:
    """Say which sources limit a mixture by weights, and how much the others give; None if there are no weights.

    A source limits it if it is used as often as its `repeat` allows or, in a mixture without any `repeat`, once: see
    `stages.select.copies.passes_of`.
    """
    if all(source.weight is None for source in config.sources):
        return None
    repeats = any(source.repeat is not None for source in config.sources)
    limits, others = list[str](), list[str]()
    for source in config.sources:
        entry, name = ledger.sources[source.name], source.name
        drawn, left = entry.examples_packed.get("train", 0), entry.examples_dropped.get(NOT_DRAWN, 0)
        most = source.repeat if repeats else 1
        if not drawn + left:
            continue
        if most is not None and not left and entry.examples_repeated == (most - 1) * drawn:
            limits.append(f"{name} ({f'repeat {most:,}' if repeats else 'the most tokens for its weight, used once'})")
        elif left:
            others.append(f"{left:,} of {plural(drawn + left, 'example')} of {name} are not drawn")
        else:
            others.append(f"{name} is used {(drawn + entry.examples_repeated) / drawn:.2f} times")
    if not limits:
        return None  # every example is held out, or left out for another reason
    more = [f"and so on for {plural(len(others) - _SOURCES, 'other source')}"] if len(others) > _SOURCES else []
    return "; ".join([f"the mixture is limited by {' and '.join(limits)}", *others[:_SOURCES], *more])


def on_holdout(config: RunConfig, selected: Selected) -> Iterator[str]:
    """Name the sources of which nothing is held out although the configuration asks for it."""
    fraction = config.holdout.fraction
    for number, source in enumerate(config.sources) if fraction else ():
        packed = selected.ledger.sources[source.name].examples_packed
        if not packed.get("train") or packed.get("holdout"):
            continue
        groups = plural(count_groups(selected.table, number, config), "group")
        yield (
            f"nothing of source {source.name} is held out: it has {groups}, and holdout.fraction is {share(fraction)}; "
            "raise it, or give the source more groups"
        )


def fate_of_rows(total: SourceLedger, looked: str = "") -> str:
    """Say what happened to the rows if no example is left, most frequent reason first: `10 rows, 2 gave examples
    (bad_json 5, too_long 3); of 4 examples, none is left (untrained 4)`.

    Args:
        looked: where the rows are, if not all of them were looked at.
    """

    def listed(reasons: dict[str, int]) -> str:
        named = sorted(reasons.items(), key=lambda one: -one[1])
        return f" ({', '.join(f'{reason} {count:,}' for reason, count in named)})" if named else ""

    blank = {"blank": total.rows_blank} if total.rows_blank else {}
    said = f"{plural(total.rows_read, 'row')}{looked}, {total.rows_used:,} gave examples"
    said += listed({**total.rows_rejected, **total.rows_filtered, **blank})
    if total.examples_dropped:
        said += f"; of {plural(total.examples_made, 'example')}, none is left{listed(total.examples_dropped)}"
    return said


def nothing_left(total: SourceLedger, rejects: str) -> str:
    """Say what to do if no example is left.

    Args:
        rejects: the path of rejects.jsonl.
    """
    if total.rows_used:
        return (
            "Check truncate.max_length, the filters and the limits, and that the mask trains something in each example "
            "(mask=assistant trains every answer of a chat)"
        )
    return f"{_CHECK}; {rejects} lists the rows"
