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


def describe_selection(
    config: RunConfig, ledger: Ledger, formats: Mapping[str, SourceFormat], *, pairs: bool = False
) -> Iterator[str]:
    """Yield the sentences of a run about its selected documents, before it packs them.

    Args:
        ledger: with what is selected.
        formats: name of a source → its format.
        pairs: whether these are preference pairs.
    """
    sentences = [
        describe_default_mask(config, formats),
        describe_unused_length(config),
        describe_mixture(config, ledger),
    ]
    if not pairs:  # which share their prompts by construction
        sentences.append(describe_unshared(config, ledger))
    yield from filter(None, sentences)
    yield from describe_missing_holdout(config, ledger)


def describe_default_mask(config: RunConfig, formats: Mapping[str, SourceFormat]) -> str | None:
    """What the default mask trains of chats, for those who did not choose it; None where a mask was chosen."""
    has_chats = any(format.name in ("messages", "sharegpt") for format in formats.values())
    if "mask" in config.model_fields_set or not has_chats:
        return None
    # A mask of one source is chosen, too. With `expand: per_turn`, each answer is the last one of an example.
    if any(source.expand != "none" or source.mask != SourceMaskConfig() for source in config.sources):
        return None
    return "mask completion, the default, trains the last answer of a chat; mask=assistant trains all"


def describe_unshared(config: RunConfig, ledger: Ledger) -> str | None:
    """Say that `pack.share` shares nothing; None where it does, or is not asked for."""
    if not config.pack.shares or ledger.total().tokens_shared:
        return None
    kind = "group" if config.pack.share == "group" else "source row"
    cause = f"no {kind} gives two examples that begin with the same untrained tokens"
    if any(config.mask_of(source).policy == "all" for source in config.sources):
        cause += "; mask all trains them from the first token on"
    return f"pack.share {config.pack.share} stores nothing once: {cause}"


def describe_unused_length(config: RunConfig) -> str | None:
    """Say that `max_length` limits no document where a strategy cuts them at rows of another length; None elsewhere."""
    if not config.pack.cuts_documents or config.row_length == config.truncate.max_length:
        return None
    return (
        f"pack.strategy {config.pack.strategy} cuts documents where rows end, every {config.row_length:,} tokens "
        f"(pack.row_length); truncate.max_length {config.truncate.max_length:,} limits none of them"
    )


def describe_mixture(config: RunConfig, ledger: Ledger) -> str | None:
    """Say which sources limit a mixture by weights; None if there are no weights, or no source limits it.

    A mixture is as large as no source exceeds its `repeat`. So a source limits it that is used exactly as often as its
    `repeat` allows. Without any `repeat`, one source is used once, and the others as often as the weights require.
    """
    if all(source.weight is None for source in config.sources):
        return None
    has_repeats = any(source.repeat is not None for source in config.sources)
    limiting = list[str]()
    for source in config.sources:
        entry = ledger.sources[source.name]
        drawn = entry.examples_packed.get("train", 0)
        not_drawn = entry.examples_dropped.get(NOT_DRAWN, 0)
        uses = source.repeat if has_repeats else 1
        if uses is None or not drawn or not_drawn:
            continue
        # Each of its examples is packed `uses` times: 10 examples with 3 uses are repeated 20 times.
        if entry.examples_repeated == (uses - 1) * drawn:
            reason = f"repeat {uses:,}" if has_repeats else "the most tokens for its weight, used once"
            limiting.append(f"{source.name} ({reason})")
    # No source of the list limits it if all examples of the one that would are held out, or left out.
    return f"the mixture is limited by {' and '.join(limiting)}" if limiting else None


def describe_missing_holdout(config: RunConfig, ledger: Ledger) -> Iterator[str]:
    """Name the sources of which nothing is held out although the configuration asks for it."""
    if not config.holdout.fraction:
        return
    for name, entry in ledger.sources.items():
        train = entry.examples_packed.get("train", 0)
        if train and not entry.examples_packed.get("holdout"):
            yield (
                f"nothing of source {name} is held out, because {plural(train, 'example')}, or "
                f"their groups, are few for a holdout.fraction of {share(config.holdout.fraction)}; raise it"
            )


def describe_nothing_left(config: RunConfig, prepared: Prepared, encoded: Encoded, selected: Selected) -> str:
    """Say why no example is left: the counts of all reasons; of the most frequent one, the first row and a remedy."""
    total = selected.ledger.total()
    counts = Counter(total.rows_rejected) + Counter(total.rows_filtered) + Counter(total.examples_dropped)
    words = f"nothing is left to pack: of {_describe_rows(total)}."
    if not counts:
        return words.removesuffix(".")
    reason = max(counts, key=lambda reason: counts[reason])
    # The reason is one of encoding, or one of the selection of documents: each function gives "" for the other's.
    example = describe_first_reject(config, prepared.joined, encoded.records, reason)
    example = example or _first_dropped(prepared, selected, reason)
    if example:
        words += f" The first: {example}"
    return f"{words} {REASONS.get(reason, OWN_REASON)}".removesuffix(".")


def _first_dropped(prepared: Prepared, selected: Selected, reason: str) -> str:
    """The first example that was left out for a reason when documents were selected; "" if there is none."""
    if reason not in OUTCOMES:
        return ""
    documents = selected.table.documents
    dropped = (documents.outcome == OUTCOMES.index(reason)).nonzero()[0].tolist()
    if not dropped:
        return ""
    document = dropped[0]
    blocks = [(file, block) for file in prepared.joined for block in file.blocks]
    # Documents stand in the order of the blocks. With blocks that start at 0, 40 and 90, document 57 is of the second.
    number = bisect_right(selected.table.origins.starts.tolist(), document) - 1
    joined_file, block = blocks[number]
    file, line = joined_file.at(block, int(documents.line[document]))
    return f"{file.shown}, line {line}: {reason}."


def _describe_rows(total: SourceLedger) -> str:
    """Say what happened to the rows, most frequent reason first: `10 rows, 2 gave examples (bad_json 5, too_long 3); of
    4 examples, none is left (untrained 4)`.
    """
    blank = {"blank": total.rows_blank} if total.rows_blank else {}
    reasons = _format_reasons({**total.rows_rejected, **total.rows_filtered, **blank})
    words = f"{plural(total.rows_read, 'row')}, {total.rows_used:,} gave examples{reasons}"
    if total.examples_dropped:
        reasons = _format_reasons(total.examples_dropped)
        words += f"; of {plural(total.examples_made, 'example')}, none is left{reasons}"
    return words


def _format_reasons(counts: Mapping[str, int]) -> str:
    """Reasons with their counts, most frequent first, as ` (untrained 4, too_long 3)`; "" if there are none."""
    if not counts:
        return ""
    reasons = sorted(counts, key=lambda reason: -counts[reason])
    return f" ({', '.join(f'{reason} {counts[reason]:,}' for reason in reasons)})"
