"""The advice on `max_length` in words, what limits it, and what sharing tokens would save.

Each clause is about one case, and names what it is about: a length, the model, a document, or a key.
"""

from collections.abc import Callable, Iterator

from ....schemas.report.length_choice import Advice, Choice, PairKeys, Point
from ....schemas.tables.strategies import CUTTING, STRATEGIES
from ....schemas.units import large, plural, share
from ..grid import Grid, Section
from .advised import GAIN, KEEPS, WHOLE, WHOLE_TEXTS, lost_at, uncut_at

QUESTION = "Which max_length?"
_COLUMNS: dict[str, Callable[[Point], str]] = {
    "trained lost": lambda point: share(lost_at(point), 2, fixed=True),
    "cut": lambda point: f"{point.documents_cut:,}",
    "left out": lambda point: f"{point.documents_lost:,}",
    "rows": lambda point: f"{point.rows:,}",
    "full": lambda point: share(point.fill, fixed=True),
    "tokens": lambda point: large(point.tokens),
}
"""The columns of a point."""
_OF_ROWS = ("rows", "full")
"""Columns that preference pairs have only if they are packed."""
_FEW = 3
"""At most so many documents, if they alone decide the advice, are named."""
_FEW_SHARE = 0.1
"""They decide alone if they are at most this share of the documents."""
SHARING_FACTOR = 1.1
"""Fewer tokens by a smaller factor are not mentioned."""


def choice_section(choice: Choice) -> Section:
    """The comparison of lengths, and the advice."""
    configured = point_at(choice, choice.max_length)
    lost = share(lost_at(configured), 2) if lost_at(configured) else "none"
    parts = []
    if configured.documents_cut:
        parts.append(f"{configured.documents_cut:,} are cut")
    if configured.documents_lost:
        parts.append(f"{configured.documents_lost:,} are left out")
    documents = " No document is cut." if choice.pairs is None else " No pair is cut."
    if parts:
        documents = f" Of {count_documents(choice, choice.documents)}, {' and '.join(parts)}."
    longer_rows = choice.row_length > choice.max_length
    rows_of = f" in rows of {choice.row_length:,}" if longer_rows else ""
    sentence = (
        f"At {choice.max_length:,}{rows_of} with {choice.strategy}, {lost} of the {counted_tokens(choice)} is lost."
    )
    sentence += documents
    if choice.documents < choice.documents_in_all:
        sentence += f" That is from {choice.documents:,} of about {count_documents(choice, choice.documents_in_all)}."
    if advice := describe_advice(choice):
        sentence += f" Advice: {advice}"
    if sharing := describe_sharing(choice):
        sentence += f" {sharing}"
    advised = choice.advice.max_length if choice.advice is not None else None
    marks = {choice.max_length: "configured", advised: "advised"}
    if advised == choice.max_length:
        marks = {advised: "configured, advised"}
    columns = dict(_COLUMNS)
    if choice.pairs is not None and not choice.pairs.are_packed:
        columns = {name: column for name, column in columns.items() if name not in _OF_ROWS}
    shown = columns
    # Where all lengths have rows of their own, their capacity needs no column.
    if longer_rows:
        shown = {"rows of": lambda point: f"{point.row_length:,}", **shown}
    if any((point.sharing_factor or 1) >= SHARING_FACTOR for point in choice.points):
        key = choice.sharing.share if choice.sharing is not None else "row"
        shown = {**shown, f"with share={key}": lambda point: f"{point.sharing_factor or 1:.1f} times fewer"}
    rows = [
        [f"{point.max_length:,}", *(column(point) for column in shown.values()), marks.get(point.max_length, "")]
        for point in choice.points
    ]
    overlong = "" if choice.strategy in CUTTING else f", overlong: {choice.overlong}"
    grids = [Grid(f"At each length, with {choice.strategy}{overlong}", (choice.key, *shown, ""), rows)]
    if choice.other is not None:
        rows = [
            [point.strategy, *(column(point) for column in columns.values())] for point in (configured, choice.other)
        ]
        grids.append(Grid(f"Another strategy at {choice.max_length:,} saves rows", ("strategy", *columns), rows))
    if choice.longest:
        rows = [[id, f"{tokens:,}"] for id, tokens in choice.longest]
        kind = "documents" if choice.pairs is None else "pairs"
        grids.append(Grid(f"The longest {kind}; packtrain inspect --id shows one", ("example", "tokens"), rows))
    return Section("choice", QUESTION, sentence, grids, warnings=list(describe_limit(choice)))


def point_at(choice: Choice, length: int) -> Point:
    """The counts at a length, which is among those compared."""
    return next(point for point in choice.points if point.max_length == length)


def counted_tokens(choice: Choice) -> str:
    """What losses are counted in, in words."""
    return "trained tokens" if any(point.labels + point.labels_lost for point in choice.points) else "tokens"


def count_documents(choice: Choice, count: int) -> str:
    """A number of documents, in words: `3 documents`, or `3 pairs`."""
    return plural(count, "document" if choice.pairs is None else "pair")


def describe_advice(choice: Choice) -> str:
    """What the advised length keeps, what the next one would, and what else would lose less or fill rows better; empty
    if there is no advice.
    """
    if choice.advice is None:
        return ""
    clauses = [
        _describe_advised(choice, choice.advice),
        _describe_pairs(choice, choice.pairs),
        _describe_row_length(choice, choice.advice),
        _describe_longer_rows(choice),
        _describe_longest(choice, choice.advice),
        _describe_splitting(choice),
        _describe_fuller(choice),
    ]
    return ". ".join(filter(None, clauses)) + "."


def _describe_advised(choice: Choice, advice: Advice) -> str:
    """The advised length, what it keeps, why not another one, and what the next longer one would keep."""
    advised = point_at(choice, advice.max_length)
    lost = lost_at(advised)
    tokens = counted_tokens(choice)
    kept = f"{share(1 - lost, 2) if lost else 'all'} of the {tokens}"
    if choice.cuts:
        kept += f" and leaves {share(uncut_at(advised))} of documents whole"
    if not advice.reached:
        words = f"keeps {kept}{_why_not_more(choice, advice)}"
    elif advice.max_length == choice.max_length:
        words = f"is enough: it keeps {kept}"
    else:
        words = f"keeps {kept}"
    words = f"{choice.key} {advice.max_length:,} {words}"
    if advice.instead_of:
        words += f", as {advice.instead_of:,} does, in fuller rows, which take {share(advice.saves)} less space"
    elif advice.reached and advice.max_length < choice.max_length and not lost:
        words += f", as {choice.max_length:,} does"
    following = next((point for point in choice.points if point.max_length > advice.max_length), advised)
    gain = lost - lost_at(following)
    if gain >= GAIN:
        more_tokens = following.tokens / max(advised.tokens, 1) - 1
        # Longer rows may store fewer tokens, where documents share theirs.
        cost = f"{share(more_tokens)} more" if more_tokens >= 0 else f"{share(-more_tokens)} fewer"
        words += f"; {following.max_length:,} would keep {share(gain, 2)} more, with {cost} tokens to compute"
        limit = choice.limit
        if advice.reached and limit is not None and following.max_length > limit.tokens >= advice.max_length:
            words += f", but the model is not made for it ({limit.reason})"
    return words


def _describe_pairs(choice: Choice, pairs: PairKeys | None) -> str:
    """Which other keys keep more of the preference pairs at the configured length, and why; "" if none does."""
    lost = point_at(choice, choice.max_length).documents_lost
    if pairs is None:
        return ""
    keys = []
    if pairs.left_out_with_end is not None and pairs.left_out_with_end < lost:
        keys.append(f"with truncate.keep=end, {_count_or_none(pairs.left_out_with_end)}")
    if pairs.left_out_with_share is not None and pairs.left_out_with_share < lost:
        keys.append(f"with pack.share=row, which stores it once, {_count_or_none(pairs.left_out_with_share)}")
    if not keys:
        return ""
    # Where the prompt can be stored once, it stands in the row twice.
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
        enough += f" and {share(WHOLE_TEXTS if choice.texts else WHOLE, 0)} of documents whole"
    if advice.bounded and choice.limit is not None:
        reason = f"the most of the lengths that the model is made for: {choice.limit.reason}"
        return f", {reason}. No such length keeps {enough}"
    kind = "document" if choice.pairs is None else "pair"
    longest = f": the longest {kind} has {choice.longest[0][1]:,} tokens" if choice.longest else ""
    return f". None of the lengths that were compared keeps {enough}{longest}"


def _describe_row_length(choice: Choice, advice: Advice) -> str:
    """Say that rows of the configured length are too short for documents of the advised one; "" if they are not."""
    if not point_at(choice, advice.max_length).row_length > choice.row_length > choice.max_length:
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


def _describe_longest(choice: Choice, advice: Advice) -> str:
    """Name the few documents that alone decide the advice; "" if it is not so few that do."""
    if not 0 < advice.longer <= min(_FEW, _FEW_SHARE * choice.documents):
        return ""
    named = [(id, tokens) for id, tokens in choice.longest if tokens > advice.shorter]  # copies count once
    if not named:
        return ""
    only = "Of those read, only" if choice.documents < choice.documents_in_all else "Only"
    listed = "; ".join(f"{id}, {tokens:,} tokens" for id, tokens in named)
    verb = "is" if len(named) == 1 else "are"
    return f"{only} {count_documents(choice, len(named))} {verb} longer than {advice.shorter:,}: {listed}"


def _describe_splitting(choice: Choice) -> str:
    """Say that plain texts could be cut into pieces; "" if they lose hardly anything, or are cut already."""
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
    """Yield what is wrong with the configured length for the model."""
    if choice.over_limit is None or choice.limit is None:
        return
    too_long = choice.over_limit
    verb = "is" if too_long == 1 else "are"
    which = f"{count_documents(choice, too_long)} {verb} longer" if too_long else "no document is longer"
    reason = choice.limit.reason
    yield f"{choice.key} {choice.max_length:,} is above what the model is made for: {reason}; {which}."


def describe_sharing(choice: Choice) -> str:
    """What sharing saves or would save at the configured length, what that is from, and the rows that it needs; "" if
    that is not worth a sentence.
    """
    sharing = choice.sharing
    factor = point_at(choice, choice.max_length).sharing_factor
    if sharing is None or factor is None or max(factor, sharing.longer_rows_factor) < SHARING_FACTOR:
        return ""
    stores = "stores" if sharing.is_used else "would store"
    words = f"pack.share={sharing.share} {stores} {factor:.1f} times fewer tokens"
    if sharing.compared < sharing.tokens:
        words += f" (of {large(sharing.tokens)} tokens, {large(sharing.compared)} were compared)"
    kind = "group" if sharing.share == "group" else "source row"
    words += f": documents of one {kind} begin alike." if choice.pairs is None else ": prompts of pairs once."
    if sharing.longer_rows_factor > factor * SHARING_FACTOR:
        words += (
            f" Rows of {choice.row_length:,} cut many groups of such documents; with "
            f"pack.row_length={sharing.longer_row_length} it would be {sharing.longer_rows_factor:.1f} times."
        )
    return words
