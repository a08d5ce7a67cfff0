"""A diff as a page: its sections, with charts."""

from dataclasses import replace

from ....schemas.units import large, share
from ..draw.blocks import Block, Chart, Page, PageSection
from ..draw.charts_base import histogram_chart
from .changes import Comparison
from .charts import examples_chart, shares_chart, tokens_chart
from .sections import changed_in_all, has_several, ledger_grid, sections


def diff_page(found: Comparison) -> Page:
    """Make the page of a diff: all changes, from the configuration to single examples."""
    a, b = found.a, found.b
    facts = [
        ("tokens", f"{large(a.tokens)} → {large(b.tokens)}"),
        ("pairs" if a.preference else "rows", f"{large(a.rows)} → {large(b.rows)}"),
        ("of completions" if a.preference else "trained", " → ".join(_trained(found))),
    ]
    if found.examples is not None:
        total = found.examples.sources[0]
        facts.append(("examples in both", large(total.same + total.tokens + total.labels)))
    return Page(
        title="What changed between two datasets",
        lead=f"A is {a.where}, B is {b.where}.",
        sections=[_with_chart(found, section) for section in sections(found, full=True)],
        facts=facts,
    )


def _trained(found: Comparison) -> list[str]:
    return [share(side.labels / max(side.tokens - side.padding, 1)) for side in (found.a, found.b)]


def _with_chart(found: Comparison, section: PageSection) -> PageSection:
    chart: Chart | None = None
    blocks: list[Block] = list(section.blocks)
    if section.name == "became":
        changed = [line for line in found.ledger if line.change]
        chart = tokens_chart(changed_in_all(found))
        several = has_several(found)
        blocks = [ledger_grid("All lines of the ledger", found.ledger, several=several, folded=True)]
        if changed:
            blocks.insert(0, ledger_grid("Lines of the ledger that differ", changed, several=several))
    elif section.name == "packed":
        chart = shares_chart(found)
    elif section.name == "lengths" and found.lengths is not None:
        series = [("A", found.lengths.a), ("B", found.lengths.b)]
        chart = histogram_chart("lengths-chart", "Lengths of examples", "examples", series, "tokens")
    elif section.name == "examples" and found.examples is not None:
        chart = examples_chart(found.examples)
    return replace(section, blocks=[*([chart] if chart else []), *blocks])
