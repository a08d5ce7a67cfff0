"""A diff as a page."""

from collections.abc import Sequence

from .blocks import Block, Grid, Heading, Page, PageSection, Words
from .change_words import change_of, figure, signed
from .changes import Comparison, LedgerLine
from .charts_base import histogram_chart
from .charts_diff import examples_chart, plain_change, shares_chart, token_changes, tokens_chart
from .diff_terminal import (
    example_head,
    example_row,
    input_row,
    kind_title,
    length_rows,
    setting_row,
    sides_rows,
    sources_of,
)
from .spoken import count, large, many, share


def diff_page(found: Comparison) -> Page:
    """The page of a diff: what changed, from what was asked for to single examples."""
    a, b = found.a, found.b
    facts = [
        ("tokens", f"{large(a.tokens)} → {large(b.tokens)}"),
        ("pairs" if a.preference else "rows", f"{large(a.rows)} → {large(b.rows)}"),
        ("of completions" if a.preference else "trained", f"{_trained(found)[0]} → {_trained(found)[1]}"),
    ]
    if found.examples is not None:
        total = found.examples.sources[0]
        facts.append(("examples in both", large(total.same + total.tokens + total.labels)))
    sections = [_sides(found), _asked(found), _read(found), _became(found), _packed(found)]
    return Page(
        title="What changed between two datasets",
        lead=f"A is {a.where}, B is {b.where}.",
        sections=[*sections, *_long(found), *_examples(found)],
        facts=facts,
    )


def _trained(found: Comparison) -> list[str]:
    return [share(side.labels / max(side.tokens, 1)) for side in (found.a, found.b)]


def _sides(found: Comparison) -> PageSection:
    grid = Grid("Both datasets", ["", "A", "B", "change"], sides_rows(found))
    return PageSection("both", "What changed?", found.sentence, [grid])


def _asked(found: Comparison) -> PageSection:
    real = [one for one in found.settings if not one.spelling]
    blocks: list[Block] = []
    for title, settings in (
        ("What was asked for", real),
        ("Said in other words, with the same meaning", [one for one in found.settings if one.spelling]),
    ):
        if settings:
            rows = [setting_row(one) for one in settings]
            blocks.append(Grid(title, ["key", "A", "B"], rows, text_columns=3))
    kinds = list(dict.fromkeys(one.section for one in real))
    said = f"{many(len(real), 'key')} of {', '.join(kinds)} {'differs' if len(real) == 1 else 'differ'}."
    if not real:
        said = "Both were asked for in the same way." + (" Some keys say it in other words." if blocks else "")
    return PageSection("asked", "What was asked for?", said, blocks)


def _read(found: Comparison) -> PageSection:
    inputs = found.inputs
    blocks: list[Block] = []
    if inputs.changes:
        rows = [input_row(one) for one in inputs.changes]
        left = sum(inputs.counts.values()) - len(rows)
        caption = "Input files that differ" + (f", the first {count(len(rows))}" if left else "")
        blocks.append(Grid(caption, ["source", "file", "what", "A", "B"], rows, text_columns=3))
    return PageSection("read", "What was read?", inputs.sentence, blocks)


def _became(found: Comparison) -> PageSection:
    changed = [line for line in found.ledger if line.change]
    several = len({line.source for line in found.ledger}) > 1
    sources = [found.ledger[0].source] if found.ledger else []
    total = [line for line in changed if line.source in sources]
    chart = tokens_chart(total)
    blocks: list[Block] = [chart] if chart else []
    if changed:
        blocks.append(_ledger("Lines of the ledger that differ", changed, several))
    blocks.append(_ledger("All lines of the ledger", found.ledger, several, folded=True))
    return PageSection("became", "What happened to the data?", _fate(total, changed), blocks)


def _fate(total: Sequence[LedgerLine], changed: Sequence[LedgerLine]) -> str:
    """What made the packed tokens more or fewer, or else what differs."""
    if not changed:
        return "Both ledgers say the same."
    if not total:
        return "The ledgers of single sources differ, but not their sum."
    tokens = token_changes(total)
    if not tokens:
        differ = "differs" if len(total) == 1 else "differ"
        return f"As many tokens are packed, but {many(len(total), 'line')} of the ledger {differ}."
    said = ", ".join(f"{plain_change(change)} through “{label}”" for label, change in tokens[:3])
    more = ", and others" if len(tokens) > 3 else ""
    return f"Packed tokens change by {plain_change(sum(change for _, change in tokens))}: {said}{more}."


def _ledger(caption: str, lines: Sequence[LedgerLine], several: bool, *, folded: bool = False) -> Grid:
    rows = [
        [*([line.source] if several else []), line.label, count(line.a), count(line.b), signed(line.a, line.b)]
        for line in lines
    ]
    head = [*(["source"] if several else []), "line", "A", "B", "change"]
    return Grid(caption, head, rows, folded, text_columns=2 if several else 1)


def _packed(found: Comparison) -> PageSection:
    rows = [
        [one.split, one.name, figure(one.a, one.unit), figure(one.b, one.unit), change_of(one)] for one in found.packing
    ]
    blocks: list[Block] = [Grid("Figures of each split", ["split", "", "A", "B", "change"], rows, text_columns=2)]
    chart = shares_chart(found)
    if chart is not None:
        blocks.insert(0, chart)
    fills = [
        f"{one.split}: {figure(one.a, 'share')} → {figure(one.b, 'share')}"
        for one in found.packing
        if one.name == "fill" and one.a != one.b
    ]
    said = f"Fill of rows, {'; '.join(fills)}." if fills else "Rows are as full in both."
    if found.a.preference:
        said = "Preference pairs are not packed; these are their figures."
    return PageSection("packed", "How good is the packing?", said, blocks)


def _long(found: Comparison) -> list[PageSection]:
    lengths = found.lengths
    if lengths is None:
        return []
    series = [("A", lengths.a), ("B", lengths.b)]
    chart = histogram_chart("lengths-chart", "Lengths of examples", "examples", series, "tokens")
    grid = Grid("Lengths of examples", ["", "A", "B", "change"], length_rows(lengths))
    blocks: list[Block] = [*([chart] if chart else []), Words(lengths.what), grid]
    return [PageSection("lengths", "How long are the examples?", lengths.sentence, blocks)]


def _examples(found: Comparison) -> list[PageSection]:
    examples = found.examples
    if examples is None:
        return []
    chart = examples_chart(examples)
    blocks: list[Block] = [*([chart] if chart else [])]
    blocks += [Grid("Examples by source", *sources_of(examples)), Words(examples.compared)]
    contents = examples.contents
    if contents is not None:
        blocks.append(
            Words(
                f"By their tokens alone, whatever their ids: {many(contents.both, 'example')} in both, "
                f"{count(contents.only_a)} only in A, {count(contents.only_b)} only in B."
            )
        )
    for kind, shown in examples.shown.items():
        number = getattr(examples.sources[0], kind)
        title = kind_title(kind, examples)
        caption = f"{count(number)}, the first {len(shown)} of them" if number > len(shown) else count(number)
        blocks.append(Heading(title[0].upper() + title[1:]))
        blocks.append(Grid(f"Examples {title}: {caption}", example_head(), [example_row(one) for one in shown]))
    return [PageSection("examples", "Which examples?", examples.sentence, blocks)]
