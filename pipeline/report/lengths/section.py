"""The advice on `max_length` in words, what limits it, and what sharing tokens would save.

Each clause is about one case, and names what it is about: a length, the model, a document, or a key.
"""

from collections.abc import Callable, Iterator

from ....schemas.report.length_choice import Advice, Choice, PairKeys, Point
from ....schemas.tables.strategies import CUTTING, STRATEGIES
from ....schemas.units import large, plural, share
from ..grid import Grid, Section
from .advised import KEEPS, WHOLE, WHOLE_TEXTS, lost_at, uncut_at

QUESTION = "Which max_length?"
_COLUMNS: dict[str, Callable[[Point], str]] = {
    "trained lost": lambda point: share(lost_at(point), digits=2, fixed=True),
    "cut": lambda point: f"{point.documents_cut:,}",
    "left out": lambda point: f"{point.documents_lost:,}",
    "rows": lambda point: f"{point.rows:,}",
    "full": lambda point: share(point.fill, fixed=True),
    "tokens": lambda point: large(point.tokens),
}
"""Head of a column → its cell for a point."""
_OF_ROWS = ("rows", "full")
"""Columns that preference pairs have only if they are packed."""
SHARING_FACTOR = 1.1
"""How many times fewer tokens sharing must store to be mentioned."""


def choice_section(choice: Choice) -> Section:
    """The comparison of lengths, and the advice."""
    sentences = [_describe_configured(choice)]
    if advice := describe_advice(choice):
        sentences.append(f"Advice: {advice}")
    if sharing := describe_sharing(choice):
        sentences.append(sharing)
    tables = [_lengths_grid(choice)]
    if choice.other is not None:
        columns = _columns_of(choice)
        points = (point_at(choice, choice.max_length), choice.other)
        rows = [[point.strategy, *(cell(point) for cell in columns.values())] for point in points]
        tables.append(Grid(f"Another strategy at {choice.max_length:,} saves rows", ("strategy", *columns), rows))
    if choice.longest:
        rows = [[id, f"{tokens:,}"] for id, tokens in choice.longest]
        kind = "documents" if choice.pairs is None else "pairs"
        tables.append(Grid(f"The longest {kind}; packtrain inspect --id shows one", ("example", "tokens"), rows))
    return Section("choice", QUESTION, " ".join(sentences), tables, warnings=list(describe_limit(choice)))


def _describe_configured(choice: Choice) -> str:
    """What the configured length loses, and from how many documents that is estimated."""
    configured = point_at(choice, choice.max_length)
    rows = f" in rows of {choice.row_length:,}" if choice.row_length > choice.max_length else ""
    lost = share(lost_at(configured), digits=2) if lost_at(configured) else "none"
    losses = []
    if configured.documents_cut:
        losses.append(f"{configured.documents_cut:,} are cut")
    if configured.documents_lost:
        losses.append(f"{configured.documents_lost:,} are left out")
    documents = "No document is cut." if choice.pairs is None else "No pair is cut."
    # Beside the share of tokens, because a few long documents may be most of the tokens.
    if losses:
        documents = f"Of {count_documents(choice, choice.documents)}, {' and '.join(losses)}."
    if choice.documents < choice.documents_in_all:
        documents += f" That is from {choice.documents:,} of about {count_documents(choice, choice.documents_in_all)}."
    return (
        f"At {choice.max_length:,}{rows} with {choice.strategy}, {lost} of the {counted_tokens(choice)} is lost. "
        f"{documents}"
    )


def _lengths_grid(choice: Choice) -> Grid:
    """What each length makes of the documents."""
    columns = _columns_of(choice)
    # Where all lengths have rows of their own, their capacity needs no column.
    if choice.row_length > choice.max_length:
        columns = {"rows of": lambda point: f"{point.row_length:,}", **columns}
    # A length without a factor stores as many tokens as without sharing: 1 time fewer.
    if choice.sharing is not None and any((point.sharing_factor or 1) >= SHARING_FACTOR for point in choice.points):
        name = f"with share={choice.sharing.share}"
        columns[name] = lambda point: f"{point.sharing_factor or 1:.1f} times fewer"
    rows = []
    for point in choice.points:
        marks = []
        if point.max_length == choice.max_length:
            marks.append("configured")
        if choice.advice is not None and point.max_length == choice.advice.max_length:
            marks.append("advised")
        rows.append([f"{point.max_length:,}", *(cell(point) for cell in columns.values()), ", ".join(marks)])
    overlong = "" if choice.strategy in CUTTING else f", overlong: {choice.overlong}"
    return Grid(f"At each length, with {choice.strategy}{overlong}", (choice.key, *columns, ""), rows)


def _columns_of(choice: Choice) -> dict[str, Callable[[Point], str]]:
    """Head of a column → its cell for a point. Pairs that are not packed have no columns of rows."""
    if choice.pairs is None or choice.pairs.are_packed:
        return dict(_COLUMNS)
    return {name: cell for name, cell in _COLUMNS.items() if name not in _OF_ROWS}


def point_at(choice: Choice, length: int) -> Point:
    """The counts at a length, which is among those compared."""
    return next(point for point in choice.points if point.max_length == length)


def counted_tokens(choice: Choice) -> str:
    """The words for what losses are counted in: trained tokens, or all tokens if none is trained."""
    return "trained tokens" if any(point.labels + point.labels_lost for point in choice.points) else "tokens"


def count_documents(choice: Choice, count: int) -> str:
    """A number of documents, in words: `3 documents`, or `3 pairs`."""
    return plural(count, "document" if choice.pairs is None else "pair")


def describe_advice(choice: Choice) -> str:
    """What the advised length keeps, and what else would lose less or fill rows better; empty if there is no advice."""
    if choice.advice is None:
        return ""
    clauses = [
        _describe_advised(choice, choice.advice),
        _describe_pairs(choice, choice.pairs),
        _describe_row_length(choice, choice.advice),
        _describe_longer_rows(choice),
        _describe_splitting(choice),
        _describe_fuller(choice),
    ]
    return ". ".join(filter(None, clauses)) + "."


def _describe_advised(choice: Choice, advice: Advice) -> str:
    """The advised length, what it keeps, and why no length that keeps more is advised."""
    advised = point_at(choice, advice.max_length)
    lost = lost_at(advised)
    is_enough = "is enough: it " if advice.reached and advice.max_length == choice.max_length else ""
    kept = f"{share(1 - lost, digits=2) if lost else 'all'} of the {counted_tokens(choice)}"
    if choice.cuts:
        kept += f" and leaves {share(uncut_at(advised))} of documents whole"
    reason = "" if advice.reached else _why_not_more(choice, advice)
    return f"{choice.key} {advice.max_length:,} {is_enough}keeps {kept}{reason}"


def _describe_pairs(choice: Choice, pairs: PairKeys | None) -> str:
    """Which other keys keep more of the preference pairs at the configured length, and why; "" if none does.

    `Pairs need their prompt twice: at 2,048, 86 pairs are left out; with pack.share=row, which stores it once, 26`
    """
    if pairs is None:
        return ""
    lost = point_at(choice, choice.max_length).documents_lost
    # A key that keeps no more pairs is no advice, whatever else it does.
    keys = []
    if pairs.left_out_with_end is not None and pairs.left_out_with_end < lost:
        keys.append(f"with truncate.keep=end, {_count_or_none(pairs.left_out_with_end)}")
    if pairs.left_out_with_share is not None and pairs.left_out_with_share < lost:
        keys.append(f"with pack.share=row, which stores it once, {_count_or_none(pairs.left_out_with_share)}")
    if not keys:
        return ""
    # Where the prompt could be stored once, it stands in the row twice now.
    needs = "Pairs need their prompt twice" if pairs.left_out_with_share is not None else "Prompts take the room"
    left_out = f"{count_documents(choice, lost)} {'is' if lost == 1 else 'are'} left out"
    return f"{needs}: at {choice.max_length:,}, {'; '.join([left_out, *keys])}"


def _count_or_none(count: int) -> str:
    """A number in words: `none` for 0."""
    return f"{count:,}" if count else "none"


def _why_not_more(choice: Choice, advice: Advice) -> str:
    """Why no length that keeps enough is advised."""
    enough = f"{share(KEEPS)} of the {counted_tokens(choice)}"
    if choice.cuts:
        enough += f" and {share(WHOLE_TEXTS if choice.texts else WHOLE, digits=0)} of documents whole"
    if advice.bounded and choice.limit is not None:
        reason = f"the most of the lengths that the model is made for: {choice.limit.reason}"
        return f", {reason}. No such length keeps {enough}"
    kind = "document" if choice.pairs is None else "pair"
    longest = f": the longest {kind} has {choice.longest[0][1]:,} tokens" if choice.longest else ""
    return f". None of the lengths that were compared keeps {enough}{longest}"


def _describe_row_length(choice: Choice, advice: Advice) -> str:
    """Say that rows of the configured length are too short for documents of the advised one; "" if they are not."""
    has_own_row_length = choice.row_length > choice.max_length
    is_too_short = point_at(choice, advice.max_length).row_length > choice.row_length
    # Else rows are as long as documents may be, and grow with `max_length`.
    if not has_own_row_length or not is_too_short:
        return ""
    return f"Rows of {choice.row_length:,} cannot hold such documents: raise pack.row_length, too"


def _describe_longer_rows(choice: Choice) -> str:
    """Say how full longer rows of the same documents would be; "" if they would be no fuller."""
    longer = choice.longer_rows
    if longer is None:
        return ""
    configured = point_at(choice, choice.max_length)
    return (
        f"With max_length {choice.max_length:,}, rows of {longer.row_length:,} (pack.row_length) would be "
        f"{share(longer.fill)} full, in place of {share(configured.fill)}"
    )


def _describe_splitting(choice: Choice) -> str:
    """Say that plain texts could be cut into pieces; "" if they lose hardly anything, or are cut already.

    Not of conversations, whose later pieces would be answers without the question.
    """
    if not choice.texts or choice.cuts or lost_at(point_at(choice, choice.max_length)) <= 1 - KEEPS:
        return ""
    return "These are plain texts: pack.strategy=bfd_split cuts them into pieces, and packs all tokens"


def _describe_fuller(choice: Choice) -> str:
    """Say which strategy needs fewer rows; "" if none does, or the user wants a row for each document."""
    if choice.other is None or not STRATEGIES[choice.strategy].is_packing:
        return ""
    return (
        f"pack.strategy={choice.other.strategy} fills rows of {choice.row_length:,} better: it needs "
        f"{share(choice.other_saves)} fewer of them"
    )


def describe_limit(choice: Choice) -> Iterator[str]:
    """Yield a warning if the configured length is longer than the model is made for."""
    if choice.over_limit is None or choice.limit is None:
        return
    too_long = choice.over_limit
    verb = "is" if too_long == 1 else "are"
    which = f"{count_documents(choice, too_long)} {verb} longer" if too_long else "no document is longer"
    reason = choice.limit.reason
    yield f"{choice.key} {choice.max_length:,} is above what the model is made for: {reason}; {which}."


def describe_sharing(choice: Choice) -> str:
    """How many times fewer tokens `pack.share` stores at the configured length, or would store, and whether longer rows
    would store still fewer; "" if both are below `SHARING_FACTOR`.
    """
    sharing = choice.sharing
    factor = point_at(choice, choice.max_length).sharing_factor
    if sharing is None or factor is None or max(factor, sharing.longer_rows_factor) < SHARING_FACTOR:
        return ""
    stores = "stores" if sharing.is_used else "would store"
    words = f"pack.share={sharing.share} {stores} {factor:.1f} times fewer tokens"
    if sharing.compared < sharing.tokens:
        words += f" (of {large(sharing.tokens)} tokens, {large(sharing.compared)} were compared)"
    if choice.pairs is not None:
        return f"{words}: prompts of pairs once."
    kind = "group" if sharing.share == "group" else "source row"
    words += f": documents of one {kind} begin alike."
    if sharing.longer_rows_factor > factor * SHARING_FACTOR:
        words += (
            f" Rows of {choice.row_length:,} cut many groups of such documents; with "
            f"pack.row_length={sharing.longer_row_length} it would be {sharing.longer_rows_factor:.1f} times."
        )
    return words
