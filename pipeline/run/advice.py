"""What a run says of its documents: what limits a mixture, which sources have no holdout, why nothing is left."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping

from ...schemas.config.config import RunConfig
from ...schemas.config.source import SourceMaskConfig
from ...schemas.dataset.ledger import Ledger, SourceLedger
from ...schemas.tables.reasons import NOT_DRAWN, OUTCOMES, OWN_REASON, REASONS
from ...schemas.units import plural, share
from ..encode.driver import Encoded, Prepared
from ..encode.rejects import describe_first_reject
from ..inputs.source_formats import SourceFormat
from ..pack.pack import Selected


def on_default_mask(config: RunConfig, formats: Mapping[str, SourceFormat]) -> str | None:
    """What the default mask trains of chats, for those who did not choose it; None where a mask was chosen."""
    if "mask" in config.model_fields_set or not {"messages", "sharegpt"} & {form.name for form in formats.values()}:
        return None
    if any(source.expand != "none" or source.mask != SourceMaskConfig() for source in config.sources):
        return None
    return "mask completion, the default, trains the last answer of a chat; mask=assistant trains all"


def selection_notes(config: RunConfig, ledger: Ledger, formats: Mapping[str, SourceFormat]) -> Iterator[str]:
    """What to say before packing.

    Args:
        ledger: with what is selected.
    """
    if (mask := on_default_mask(config, formats)) is not None:
        yield mask
    if (length := on_length(config)) is not None:
        yield length
    if (mixture := on_mixture(config, ledger)) is not None:
        yield mixture
    yield from on_holdout(config, ledger)


def on_length(config: RunConfig) -> str | None:
    """Say that `max_length` limits no document where a strategy cuts them at rows of another length; None elsewhere."""
    if not config.pack.cuts_documents or config.row_length == config.truncate.max_length:
        return None
    return (
        f"pack.strategy {config.pack.strategy} cuts documents where rows end, every {config.row_length:,} tokens "
        f"(pack.row_length); truncate.max_length {config.truncate.max_length:,} limits none of them"
    )


def on_mixture(config: RunConfig, ledger: Ledger) -> str | None:
    """Say which sources limit a mixture by weights; None if there are no weights. The ledger says what the others give.

    A source limits it if it is used as often as its `repeat` allows or, in a mixture without any `repeat`, once: see
    `stages.select.copies.passes_of`.
    """
    if all(source.weight is None for source in config.sources):
        return None
    repeats = any(source.repeat is not None for source in config.sources)
    limits = list[str]()
    for source in config.sources:
        entry, name = ledger.sources[source.name], source.name
        drawn, left = entry.examples_packed.get("train", 0), entry.examples_dropped.get(NOT_DRAWN, 0)
        most = source.repeat if repeats else 1
        if drawn and most is not None and not left and entry.examples_repeated == (most - 1) * drawn:
            limits.append(f"{name} ({f'repeat {most:,}' if repeats else 'the most tokens for its weight, used once'})")
    return f"the mixture is limited by {' and '.join(limits)}" if limits else None  # all may be held out, or left out


def on_holdout(config: RunConfig, ledger: Ledger) -> Iterator[str]:
    """Name the sources of which nothing is held out although the configuration asks for it."""
    for name, entry in ledger.sources.items() if config.holdout.fraction else ():
        packed = entry.examples_packed.get("train", 0)
        if packed and not entry.examples_packed.get("holdout"):
            yield (
                f"nothing of source {name} is held out, because {plural(packed, 'example')}, or "
                f"their groups, are few for a holdout.fraction of {share(config.holdout.fraction)}; raise it"
            )


def nothing_left(config: RunConfig, prepared: Prepared, encoded: Encoded, selected: Selected) -> str:
    """Say why no example is left, which row shows it, and what to do."""
    total = selected.ledger.total()
    reasons = Counter(total.rows_rejected) + Counter(total.rows_filtered) + Counter(total.examples_dropped)
    most = max(reasons, key=lambda reason: reasons[reason], default="")
    first = describe_first_reject(config, prepared.joined, encoded.records, most) or _first_dropped(
        prepared, selected, most
    )
    remedy = f" {REASONS.get(most, OWN_REASON)}" if most else ""
    first = f" The first: {first}" if first else ""
    return f"nothing is left to pack: of {_fate_of_rows(total)}.{first}{remedy}".removesuffix(".")


def _first_dropped(prepared: Prepared, selected: Selected, reason: str) -> str:
    """The first example that was left out for a reason when documents were selected; "" if there is none."""
    documents, origins = selected.table.documents, selected.table.origins
    found = (documents.outcome == OUTCOMES.index(reason)).nonzero()[0].tolist() if reason in OUTCOMES else []
    if not found:
        return ""
    blocks = [(file, block) for file in prepared.joined for block in file.blocks]
    file, block = blocks[bisect_right(origins.starts.tolist(), found[0]) - 1]
    shown, line = file.at(block, int(documents.line[found[0]]))
    return f"{shown.shown}, line {line}: {reason}."


def _fate_of_rows(total: SourceLedger) -> str:
    """Say what happened to the rows, most frequent reason first: `10 rows, 2 gave examples (bad_json 5, too_long 3); of
    4 examples, none is left (untrained 4)`.
    """

    def listed(reasons: dict[str, int]) -> str:
        named = sorted(reasons.items(), key=lambda one: -one[1])
        return f" ({', '.join(f'{reason} {count:,}' for reason, count in named)})" if named else ""

    blank = {"blank": total.rows_blank} if total.rows_blank else {}
    said = f"{plural(total.rows_read, 'row')}, {total.rows_used:,} gave examples"
    said += listed({**total.rows_rejected, **total.rows_filtered, **blank})
    if total.examples_dropped:
        said += f"; of {plural(total.examples_made, 'example')}, none is left{listed(total.examples_dropped)}"
    return said
