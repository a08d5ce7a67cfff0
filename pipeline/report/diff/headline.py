"""Writes the result of a diff in one sentence."""

from collections.abc import Sequence

from ....schemas.units import exact
from .change_words import rows_word, setting_text, than
from .changes import InputsChange, Setting, Side

MOST = 4
"""Maximum number of causes that the sentence names."""


def headline(
    a: Side,
    b: Side,
    settings: Sequence[Setting],
    inputs: InputsChange,
    *,
    identical: bool,
    same_rows: bool,
) -> str:
    """Return the first sentence of a diff, for the terminal and the page."""
    if identical:
        return f"A and B are the same dataset, byte for byte: manifest {a.manifest[:16]}."
    causes = causes_of(settings, inputs)
    if same_rows:
        what = f"; differences: {listed(causes)}." if causes else "; only files beside the rows differ."
        return f"The rows of A and B are identical{what}"
    if a.plan == b.plan:
        return (
            "A and B were made from the same plan, so their bytes should be the same, but they differ; "
            "`packtrain verify --deep` says which of the two is damaged."
        )
    return f"{_amount(a, b)}: {listed(causes) or 'made from another plan'}."


def causes_of(settings: Sequence[Setting], inputs: InputsChange) -> list[str]:
    """List what was configured or read differently, most important first."""
    real = [one for one in settings if not one.spelling]
    out = []
    for kind, what in ((None, "added"), ("", "removed")):
        names = [one.key for one in real if one.whole_source and (one.a is None) == (kind is None)]
        if names:
            out.append(f"{exact(len(names))} {'source' if len(names) == 1 else 'sources'} {what}")
    out += [setting_text(one) for one in real if one.section == "configuration" and not one.whole_source]
    files = [
        f"{exact(number)} input {'file' if number == 1 else 'files'} {what}" for what, number in inputs.counts.items()
    ]
    if not any(text.endswith(("added", "removed")) for text in out):
        out += files
    else:
        out += [text for text in files if not text.endswith(("added", "removed"))]
    others = [one for one in real if one.section != "configuration"]
    if any(
        (one.section, one.key) == ("tokenizer", "hash") for one in others
    ):  # the other differences follow from the tokenizer's
        others = [one for one in others if one.key != "pad_id" and not one.key.startswith("around.")]
    out += [setting_text(one) for one in others]
    return out or [f"{setting_text(one)} (these mean the same)" for one in settings]


def listed(causes: Sequence[str]) -> str:
    """Name the first causes, and how many more there are."""
    shown = "; ".join(causes[:MOST])
    more = len(causes) - MOST
    return f"{shown}; {exact(more)} more {'change' if more == 1 else 'changes'}" if more > 0 else shown


def _amount(a: Side, b: Side) -> str:
    rows = f"{than(a.rows, b.rows)} {rows_word(b)}"
    if b.preference:
        return f"B holds {than(a.tokens, b.tokens)} tokens in {rows}"
    if (a.labels, a.tokens) == (b.labels, b.tokens):
        return f"B trains on the same number of tokens, in {rows}"
    return f"B trains on {than(a.labels, b.labels)} tokens, and packs {than(a.tokens, b.tokens)} in {rows}"
