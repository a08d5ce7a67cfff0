"""Writes the questions of a diff and the tables that answer them, for the page and the terminal."""

from collections.abc import Sequence

from ....schemas.units import exact, plural, size
from ..draw.blocks import Block, Grid, Heading, PageSection, Words
from ..draw.charts_base import QUANTILES
from .change_words import change_of, figure, relative, rows_word, signed, value_of
from .changes import Comparison, ExamplesChange, InputChange, LedgerLine, LengthsChange, Setting, ShownExample
from .charts import plain_change, token_changes

NAMED = 5
"""Maximum number of examples of each kind, and of input files, that are named without `full`."""
MOST_SOURCES = 4
"""With more sources than this, only the sum of their ledgers is shown without `full`."""
KINDS = {
    "only_a": "only in A",
    "only_b": "only in B",
    "tokens": "in both, with other tokens",
    "labels": "in both, with other labels",
    "copies": "in both, packed a different number of times",
    "moved": "in both, in another split",
}
"""Name of each kind in `ExamplesChange.shown`."""


def sections(found: Comparison, *, full: bool) -> list[PageSection]:
    """Return all sections, from the configuration to single examples.

    Args:
        full: include what did not change, and all named examples.
    """
    return [
        PageSection("both", "What changed?", found.sentence, [sides_grid(found)]),
        _settings(found, full),
        _read(found, full),
        _became(found, full),
        _packed(found, full),
        *_long(found, full),
        *_examples(found, full),
    ]


def sides_grid(found: Comparison) -> Grid:
    """Make a table of the two datasets."""
    return Grid("Both datasets", ("", "A", "B", "change"), _sides_rows(found))


def settings_grid(caption: str, settings: Sequence[Setting]) -> Grid:
    """Make a table of the keys that differ, with both values."""
    return Grid(caption, ("key", "A", "B"), [_setting_row(one) for one in settings], text_columns=3)


def inputs_grid(caption: str, changes: Sequence[InputChange]) -> Grid:
    """Make a table of the input files that differ."""
    return Grid(caption, ("source", "file", "what", "A", "B"), [_input_row(one) for one in changes], text_columns=3)


def ledger_grid(caption: str, lines: Sequence[LedgerLine], *, several: bool, folded: bool = False) -> Grid:
    """Make a table of ledger lines.

    Args:
        several: whether to add a column with the source.
    """
    rows = [
        [*([line.source] if several else []), line.label, exact(line.a), exact(line.b), signed(line.a, line.b)]
        for line in lines
    ]
    head = (*(["source"] if several else []), "line", "A", "B", "change")
    return Grid(caption, head, rows, folded, text_columns=2 if several else 1)


def has_several(found: Comparison) -> bool:
    """Whether the ledger has several sources."""
    return len({line.source for line in found.ledger}) > 1


def _settings(found: Comparison, full: bool) -> PageSection:
    real = [one for one in found.settings if not one.spelling]
    spelt = [one for one in found.settings if one.spelling]
    blocks: list[Block] = [settings_grid("Settings", real)] if real else []
    if spelt and full:
        blocks.append(settings_grid("Written differently, with the same meaning", spelt))
    kinds = list(dict.fromkeys(one.section for one in real))
    said = f"{plural(len(real), 'key')} of {', '.join(kinds)} {'differs' if len(real) == 1 else 'differ'}."
    if not real:
        said = "Both have the same settings." + (" Some keys are written differently." if spelt else "")
    return PageSection("asked", "Which settings differ?", said, blocks)


def _read(found: Comparison, full: bool) -> PageSection:
    inputs = found.inputs
    blocks: list[Block] = []
    if inputs.changes:
        shown = inputs.changes if full else inputs.changes[:NAMED]
        left = sum(inputs.counts.values()) - len(shown)
        caption = "Input files that differ" + (f", the first {exact(len(shown))}" if left else "")
        blocks.append(inputs_grid(caption, shown))
        if left:
            blocks.append(Words(f"and {exact(left)} more"))
    return PageSection("read", "What was read?", inputs.sentence, blocks)


def _became(found: Comparison, full: bool) -> PageSection:
    several = has_several(found)
    changed = [line for line in found.ledger if line.change]
    total = changed_in_all(found)
    blocks: list[Block] = []
    if full:
        blocks.append(ledger_grid("All lines of the ledger", found.ledger, several=several))
    elif changed:
        few = len({line.source for line in found.ledger}) <= MOST_SOURCES + 1
        blocks.append(ledger_grid("Lines of the ledger that differ", changed if few else total, several=several))
        if not few:
            blocks.append(Words("sums of all sources; --full shows each source"))
    return PageSection("became", "What happened to the data?", _fate(total, changed), blocks)


def changed_in_all(found: Comparison) -> list[LedgerLine]:
    """Return the ledger lines that differ in the sum of all sources."""
    return [line for line in found.ledger if line.change and line.source == found.ledger[0].source]


def _fate(total: Sequence[LedgerLine], changed: Sequence[LedgerLine]) -> str:
    """Say what changed the number of packed tokens; if it is the same, say what else differs."""
    if not changed:
        return "Both ledgers are the same."
    if not total:
        return "The ledgers of single sources differ, but their sums are the same."
    tokens = token_changes(total)
    if not tokens:
        differ = "differs" if len(total) == 1 else "differ"
        return f"The number of packed tokens is the same, but {plural(len(total), 'line')} of the ledger {differ}."
    said = ", ".join(f"{plain_change(change)} through “{label}”" for label, change in tokens[:3])
    more = ", and others" if len(tokens) > 3 else ""
    return f"Packed tokens change by {plain_change(sum(change for _, change in tokens))}: {said}{more}."


def _packed(found: Comparison, full: bool) -> PageSection:
    rows = [
        [one.split, one.name, figure(one.a, one.unit), figure(one.b, one.unit), change_of(one)]
        for one in found.packing
        if full or one.a != one.b
    ]
    fills = [
        f"{one.split}: {figure(one.a, 'share')} → {figure(one.b, 'share')}"
        for one in found.packing
        if one.name == "fill" and one.a != one.b
    ]
    said = f"Fill of rows: {'; '.join(fills)}." if fills else "Rows are equally full in both."
    if found.a.preference:
        said = "Preference pairs are not packed."
    grid = Grid("Figures of each split", ("split", "", "A", "B", "change"), rows, text_columns=2)
    return PageSection("packed", "How good is the packing?", said, [grid] if rows or full else [])


def _long(found: Comparison, full: bool) -> list[PageSection]:
    lengths = found.lengths
    if lengths is None:
        return []
    grid = Grid("Lengths of examples", ("", "A", "B", "change"), length_rows(lengths))
    blocks: list[Block] = [Words(lengths.what), grid] if full or lengths.a != lengths.b else []
    return [PageSection("lengths", "How long are the examples?", lengths.sentence, blocks)]


def _examples(found: Comparison, full: bool) -> list[PageSection]:
    examples = found.examples
    if examples is None:
        return []
    blocks: list[Block] = []
    if examples.shown or full:
        blocks += [Grid("Examples by source", *_sources_of(examples)), Words(examples.compared)]
    contents = examples.contents
    if contents is not None and full:
        blocks.append(
            Words(
                f"Matched by tokens, ids aside: {plural(contents.both, 'example')} in both, "
                f"{exact(contents.only_a)} only in A, {exact(contents.only_b)} only in B."
            )
        )
    for kind, named in examples.shown.items():
        shown = named if full else named[:NAMED]
        number = getattr(examples.sources[0], kind)
        title = kind_title(kind, examples)
        caption = f"{exact(number)}, the first {len(shown)} of them" if number > len(shown) else exact(number)
        blocks.append(Heading(title[0].upper() + title[1:]))
        head = ("example", "tokens", "trained", "copies", "split")
        blocks.append(Grid(f"Examples {title}: {caption}", head, [_example_row(one) for one in shown]))
    return [PageSection("examples", "Which examples?", examples.sentence, blocks)]


def _sides_rows(found: Comparison) -> list[list[str]]:
    """Make a table with one line per figure."""
    a, b = found.a, found.b
    rows = [
        ["folder", a.where, b.where],
        ["manifest", a.manifest[:16], b.manifest[:16]],
        [rows_word(a), exact(a.rows), exact(b.rows), signed(a.rows, b.rows)],
        ["tokens", exact(a.tokens), exact(b.tokens), signed(a.tokens, b.tokens)],
        [
            "of completions" if a.preference else "trained",
            exact(a.labels),
            exact(b.labels),
            signed(a.labels, b.labels),
        ],
        ["shards", exact(a.shards), exact(b.shards), signed(a.shards, b.shards)],
        ["bytes", size(a.bytes), size(b.bytes), relative(a.bytes, b.bytes)],
    ]
    return [row if len(row) == 4 else [*row, "=" if row[1] == row[2] else ""] for row in rows]


def _setting_row(one: Setting) -> list[str]:
    """Make the table row of a key that differs, with both values."""
    where = "" if one.section == "configuration" else f"{one.section}: "
    return [where + one.key, value_of(one.a), value_of(one.b)]


def _input_row(one: InputChange) -> list[str]:
    """Make the table row of one changed input file."""
    what = one.what
    if one.was is not None:
        what += f" from {one.was}"
    if one.rows is not None:
        what += f"; its first {exact(one.rows)} rows are the same"
    held = ["–" if value is None else size(value) for value in (one.bytes_a, one.bytes_b)]
    return [one.source, one.file, what, *held]


def _example_row(one: ShownExample) -> list[str]:
    """Make the table row of an example; figures that differ are written as A → B."""
    return [
        one.id if one.was is None else f"{one.id} (was {one.was})",
        _pair(one.tokens_a, one.tokens_b),
        _pair(one.trained_a, one.trained_b),
        _pair(one.copies_a, one.copies_b),
        _pair(one.split_a, one.split_b),
    ]


def kind_title(kind: str, found: ExamplesChange) -> str:
    """Name a kind of examples."""
    return "in both, of another length" if kind == "tokens" and found.contents is None else KINDS[kind]


def _sources_of(found: ExamplesChange) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return (head, rows) of the table of examples by source; it has fewer columns if no rows were read."""
    columns = {"source": "source", "same": "same", "tokens": "other tokens", "labels": "other labels"}
    if found.contents is None:
        columns = {"source": "source", "same": "same length", "tokens": "other length"}
    columns |= {"only_a": "only in A", "only_b": "only in B"}
    if found.contents is not None:
        columns |= {"copies": "other copies", "moved": "other split"}
    rows = [[one.source, *(exact(getattr(one, key)) for key in list(columns)[1:])] for one in found.sources]
    return tuple(columns.values()), rows


def length_rows(found: LengthsChange) -> list[list[str]]:
    """Make a table with the count, mean and quantiles of lengths."""
    one, other = found.a, found.b
    rows: list[tuple[str, float, float]] = [("examples", one.count, other.count), ("mean", one.mean, other.mean)]
    rows += [(name, one.quantiles.get(name, 0.0), other.quantiles.get(name, 0.0)) for name in QUANTILES]
    return [[name, exact(a), exact(b), signed(a, b)] for name, a, b in rows]


def _pair(a: int | str | None, b: int | str | None) -> str:
    texts = [value if isinstance(value, str) else exact(value) for value in (a, b) if value is not None]
    if not texts:
        return "–"
    return texts[0] if len(set(texts)) == 1 else " → ".join(texts)
