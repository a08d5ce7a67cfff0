"""A ledger in words: its lines, what became of the supervised tokens, and what is not used. Terminal, page, card and
`diff` say it with the same words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ...schemas.dataset.ledger import Ledger, SourceLedger, rejected_of
from ...schemas.report.flow import Supervision
from ...schemas.tables.reasons import NOT_DRAWN, OWN_REASON, REASONS
from ...schemas.units import plural, share
from .grid import Grid

COLUMNS = 4
"""Maximum number of sources that have a column of the ledger."""
_LINES = (
    ("bold", "rows read", "rows_read"),
    ("", "  used", "rows_used"),
    ("dim", "  rejected", "rows_rejected"),
    ("dim", "  filtered", "rows_filtered"),
    ("dim", "  blank", "rows_blank"),
    ("bold", "examples made", "examples_made"),
    ("dim", "  packed", "examples_packed"),
    ("dim", "  dropped", "examples_dropped"),
    ("dim", "  never made", "examples_skipped"),
    ("", "  of these, in evaluation rows", "examples_contaminated"),
    ("dim", "  of these, further copies", "examples_repeated"),
    ("", "  of these, equal to an earlier one", "examples_equal"),
    ("dim", "  copies in a row with another one", "copies_together"),
    ("dim", "  of these, truncated", "examples_truncated"),
    ("dim", "  of these, in pieces", "examples_split"),
    ("dim", "  of these, without a label", "examples_without_labels"),
    ("bold", "tokens encoded", "tokens_encoded"),
    ("dim", "  created", "tokens_created"),
    ("red", "  truncated", "tokens_truncated"),
    ("dim", "  dropped", "tokens_dropped"),
    ("", "  shared", "tokens_shared"),
    ("", "  packed", "tokens_packed"),
    ("bold", "supervised tokens", "supervised_encoded"),
    ("dim", "  in further copies", "supervised_repeated"),
    ("red", "  supervised, truncated", "supervised_truncated"),
    ("dim", "  supervised, dropped", "supervised_dropped"),
    ("dim", "  first tokens of pieces", "labels_first_token"),
    ("bold green", "labels trained", "labels_trained"),
    ("bold green", "  sum of loss weights", "weight_trained"),
    ("dim", "  masked", "labels_masked"),
    ("dim", "turns trained", "turns_trained"),
    ("dim", "  without an end-of-turn token", "turns_without_stop"),
    ("dim", "  ended by the next header", "turns_stop_next"),
    ("dim", "cuts through trained turns", "turns_cut"),
    ("dim", "tokens across a boundary", "straddles"),
    ("", "examples with special tokens in contents", "examples_with_special"),
    ("", "  special tokens in contents", "special_in_contents"),
    ("dim", "  left out by the template", "template_dropped"),
    ("dim", "  unknown role", "unknown_roles"),
    ("dim", "columns not read, in rows", "columns_not_read"),
    ("dim", "keys not read, in messages", "keys_not_read"),
    ("dim", "tool calls whose arguments are not JSON", "call_arguments_not_json"),
)
"""(style in a terminal, words, field of `SourceLedger`); inner lines are indented. A field that counts by reason has a
line for each reason.
"""
_WORDS = {field: words.strip() for _, words, field in _LINES}
"""Field of `SourceLedger` → its words."""
_USES_NAMED = 8
"""Maximum number of sources of which a sentence says how often their examples are used."""
_KEY = re.compile(rf"(.*?)\.?\b({'|'.join(_WORDS)})(?:\.(.*))?")
"""A key of a flat ledger; groups: source, field, reason. Names of sources may have dots, too: the groups of
`my.chats.examples_dropped.overlong` are `my.chats`, `examples_dropped` and `overlong`. The reason is None where a field
has none."""
FIRST_TOKEN = "first_token"
"""The reason in `Supervision.lost` for supervised tokens that come first in a piece: nothing predicts them."""
CHOSEN = frozenset(
    {"contaminated", "duplicate", "equal", "holdout", "max_tokens", "min_tokens", "train", NOT_DRAWN}
)  # fmt: skip
"""Reasons that the configuration asks for by name: what they leave out is no loss. `train` and `holdout` are those of a
split that is not packed, because only the other one is."""
MUCH_LOST = 0.03
"""Lost share of the supervised tokens above which the end of a run is yellow."""
MOST_LOST = 0.1
"""Lost share of the supervised tokens above which it is red."""


def ledger_grid(ledger: Ledger) -> Grid:
    """Counts of rows, examples, tokens and labels, without lines of zeros. Each source has a column, and all together
    have one; of more than `COLUMNS` sources, there is only the one of all.
    """
    names = list(ledger.sources)
    caption = "Ledger"
    # A terminal has room for a few columns.
    if len(names) > COLUMNS:
        caption = f"Ledger of {len(names):,} sources; report.json has each one"
        names = []
    columns = [ledger.sources[name] for name in names]
    if len(names) != 1:  # of a single source, the sum would be the same column again
        names.append("all")
        columns.append(ledger.total())
    rows = []
    styles = []
    for style, words, field in _LINES:
        # A count by reason has a line for each reason; any other field has one.
        for line, values in _lines(words, field, columns).items():
            if any(values):
                rows.append([line, *map(_format_number, values)])
                styles.append(style)
    return Grid(caption, ("", *names), rows, styles=styles)


def _lines(words: str, field: str, columns: Sequence[SourceLedger]) -> dict[str, list[float]]:
    """Words of a line → its value in each column. A field that counts by reason has a line for each reason."""
    values = [getattr(column, field) for column in columns]
    if not isinstance(values[0], dict):
        return {words: values}
    lines = {}
    for reason in sorted({reason for counts in values for reason in counts}):
        # Examples that weights of sources do not draw are no loss, unlike all others that are dropped.
        line = "  not drawn" if reason == NOT_DRAWN else words
        lines[f"{line}: {reason}"] = [counts.get(reason, 0) for counts in values]
    return lines


def _format_number(value: float) -> str:
    """A whole number in full, any other (a sum of loss weights) with six digits."""
    return f"{int(value):,}" if value == int(value) else f"{float(f'{value:.6g}'):,}"


def ledger_words(key: str) -> str:
    """The words for a key of a flat ledger: `chats: examples dropped: overlong` for `chats.examples_dropped.overlong`.
    The key itself if no line of the ledger has it.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        return key
    source, field, reason = match.groups()
    words = _WORDS[field]
    # In the table, `dropped` stands below `examples made` or `tokens encoded`. Here it stands alone, and becomes
    # `examples dropped`. Words that name their unit, or do not need one, stay.
    unit = field.partition("_")[0]
    if unit in ("examples", "tokens") and not words.startswith((unit, "of these", "copies")):
        words = f"{unit} {words}"
    source = "all sources" if source == "*" else source
    return ": ".join(part for part in (source, words, reason) if part)


# Supervised tokens


def supervision_of(total: SourceLedger) -> Supervision:
    """What became of the supervised tokens of a ledger that closes."""
    lost = {"max_length": total.supervised_truncated, FIRST_TOKEN: total.labels_first_token, **total.supervised_dropped}
    return Supervision(
        supervised=total.supervised_encoded + total.supervised_repeated,
        trained=total.labels_trained,
        lost={reason: count for reason, count in sorted(lost.items(), key=lambda pair: -pair[1]) if count},
    )


def describe_supervision(supervision: Supervision) -> str:
    """Say which share of the supervised tokens is trained, and where the rest went."""
    supervised = supervision.supervised
    if not supervised:
        return "No token is supervised: nothing is trained."
    of_all = plural(supervised, "supervised token")
    if not supervision.lost:
        return f"Trained: all of {of_all}."
    rest = "; ".join(f"{share(count / supervised)} {_lost_as(reason)}" for reason, count in supervision.lost.items())
    return f"Trained: {share(supervision.trained / supervised)}, {supervision.trained:,} of {of_all}. The rest: {rest}."


def _lost_as(reason: str) -> str:
    """The words for a reason of `Supervision.lost`."""
    if reason == FIRST_TOKEN:
        return "first tokens of pieces"
    if reason == "max_length":
        return "truncated: max_length"
    return f"dropped: {reason}"


def supervision_style(supervision: Supervision) -> str:
    """The style of the sentence in a terminal, by the share that is lost although the configuration does not ask for
    it. First tokens do not count: nothing could predict them.
    """
    lost = sum(count for reason, count in supervision.lost.items() if reason not in CHOSEN and reason != FIRST_TOKEN)
    # Where no token is supervised, nothing is trained, which is as bad as losing all.
    lost_share = lost / supervision.supervised if supervision.supervised else 1.0
    if lost_share > MOST_LOST:
        return "bold red"
    return "bold yellow" if lost_share > MUCH_LOST else "bold green"


def describe_losses(total: SourceLedger, rejects: str) -> Iterator[str]:
    """Yield what a run loses although its configuration does not ask for it: much of the supervised tokens, and rows
    that cannot be used.

    Args:
        rejects: the path of rejects.jsonl.
    """
    supervision = supervision_of(total)
    # Any other style means that much is lost.
    if supervision_style(supervision) != "bold green":
        yield describe_supervision(supervision)
    if rejected_of(total):
        yield _describe_rejected(total, rejects)


# What is not used


def describe_unused(total: SourceLedger, rejects: str) -> Iterator[str]:
    """Yield up to three sentences, on what is rejected, filtered out and dropped: each has its reasons, and the meaning
    of the most frequent one.

    Args:
        rejects: the path of rejects.jsonl; "" if it is not written.
    """
    rejected = rejected_of(total)
    if rejected:
        yield _describe_rejected(total, rejects)
    if total.rows_filtered:
        amount = plural(sum(total.rows_filtered.values()), "row")
        yield f"Filtered: {amount} ({_list_counts(total.rows_filtered)}). {_explain(total.rows_filtered)}"
    dropped = {reason: count for reason, count in total.examples_dropped.items() if reason not in rejected}
    if dropped:
        amount = f"{plural(sum(dropped.values()), 'example')} of {total.examples_made:,}"
        yield f"Dropped: {amount} ({_list_counts(dropped)}). {_explain(dropped)}"


def _describe_rejected(total: SourceLedger, rejects: str) -> str:
    """How many rows or examples cannot be used, and why.

    Args:
        rejects: the path of rejects.jsonl; "" if it is not written.
    """
    rejected = rejected_of(total)
    amount = plural(sum(rejected.values()), "row or example", "rows or examples")
    of_all = plural(total.rows_read, "row")
    place = f" All: {rejects}" if rejects else ""
    return f"Rejected: {amount} of {of_all} ({_list_counts(rejected)}). {_explain(rejected)}{place}"


def _list_counts(counts: Mapping[str, int]) -> str:
    """`overlong 3, empty 1`: the most frequent first."""
    return ", ".join(f"{name} {count:,}" for name, count in _by_count(counts))


def _explain(reasons: Mapping[str, int]) -> str:
    """`overlong: It is longer …`: what the most frequent reason means, and what to do. If it is the only one, its name
    is not repeated.
    """
    reason = _by_count(reasons)[0][0]
    meaning = REASONS.get(reason, OWN_REASON)  # a reader of one's own may give reasons of its own
    return f"{reason}: {meaning}" if len(reasons) > 1 else meaning


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """(name, count), the most frequent first, of equal ones by name."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def describe_contents(total: SourceLedger) -> Iterator[str]:
    """Yield what to know of the contents: examples that are equal, special tokens in them, calls without JSON."""
    if total.examples_equal:
        packed = sum(total.examples_packed.values())
        equal = plural(total.examples_equal, "packed example is", "packed examples are")
        of_all = share(total.examples_equal / packed)
        yield f"Copies: {equal} equal to an earlier one ({of_all}); duplicates=drop leaves them out."
    if total.examples_with_special:
        named = _list_counts(total.special_in_contents)
        examples = plural(total.examples_with_special, "example has", "examples have")
        yield (
            f"Special tokens: {examples} some in the contents ({named}), which are real ones for the model; "
            "remove them, or leave such rows out (where)."
        )
    if total.call_arguments_not_json:
        calls = plural(total.call_arguments_not_json, "tool call has", "tool calls have")
        yield (
            f"Tool calls: {calls} arguments that are not the JSON of an object; the template writes them as they "
            "stand. Correct them, if the model is to learn calls that can be parsed."
        )


# How often examples are used


def uses_sentence(sources: Mapping[str, SourceLedger]) -> str:
    """Say how often each source's examples are used; empty if each is used once. Held-out examples do not count.

    Args:
        sources: the closed ledger of each source.
    """
    uses = {name: _uses_of(entry) for name, entry in sources.items()}
    average_uses = {name: average for name, average in uses.items() if average is not None}
    if all(average == 1 for average in average_uses.values()):
        return ""
    # A source that is repeated often is what a model may learn by heart, so it comes first.
    by_use = sorted(average_uses, key=lambda name: -average_uses[name])
    listed = [
        f"{name} {_format_times(average_uses[name])} ({_format_examples(sources[name])})"
        for name in by_use[:_USES_NAMED]
    ]
    if len(by_use) > _USES_NAMED:
        listed.append(f"and {len(by_use) - _USES_NAMED:,} more sources less often")
    sentence = f"Examples are used: {', '.join(listed)}."
    together = sum(entry.copies_together for entry in sources.values())
    if together:
        sentence += f" {plural(together, 'copy stands', 'copies stand')} in a row with another one."
    return sentence


def _uses_of(entry: SourceLedger) -> float | None:
    """How often an example of a source is packed, on average over all its examples that could be; None if it has none.

    Of 100 examples, 40 drawn with 10 further copies: 0.5 times.
    """
    drawn = entry.examples_packed.get("train", 0)
    could_be = drawn + entry.examples_dropped.get(NOT_DRAWN, 0)
    return (drawn + entry.examples_repeated) / could_be if could_be else None


def _format_examples(entry: SourceLedger) -> str:
    """`625 examples`, or `40 of 625 examples` where the weights draw only some."""
    drawn = entry.examples_packed.get("train", 0)
    not_drawn = entry.examples_dropped.get(NOT_DRAWN, 0)
    if not_drawn:
        return f"{drawn:,} of {plural(drawn + not_drawn, 'example')}"
    return plural(drawn, "example")


def _format_times(uses: float) -> str:
    """`once`, `20 times`, `2.5 times`, `0.04 times`."""
    if uses == 1:
        return "once"
    if uses < 0.005:  # which two digits would show as 0
        return "less than 0.01 times"
    return f"{uses:,.2f}".rstrip("0").rstrip(".") + " times"
