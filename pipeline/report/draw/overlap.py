"""Shows examples and evaluation rows beside each other, with what they share marked."""

from collections.abc import Sequence

from ....schemas.report import Overlap, OverlapCount, OverlapPiece, ShownOverlap
from ....schemas.units import share
from .blocks import Block, Grid, Heading, Markup
from .markup import escaped

_PIECE = 4_000


def overlap_blocks(overlap: Overlap) -> list[Block]:
    """Return tables, and pairs of texts."""
    blocks: list[Block] = []
    if overlap.counts:
        blocks.append(counts_grid(overlap.counts))
    if overlap.ignored:
        ignored = [[what, f"{count:,}"] for what, count in overlap.ignored.items()]
        blocks.append(Grid("Left out of the comparison", ["what", "how many"], ignored, folded=True))
    if overlap.shown:
        blocks.append(Heading("Both texts"))
        blocks.append(Markup(pairs_of_texts(overlap.shown)))
    return blocks


def counts_grid(counts: Sequence[OverlapCount]) -> Grid:
    """Return examples by source and evaluation file, as a table."""
    rows = [
        [
            one.source,
            one.evaluation,
            *(f"{value:,}" for value in (one.examples, one.whole, one.near_whole, one.ngram, one.rows)),
        ]
        for one in counts
    ]
    head = ["source", "evaluation file", "examples", "whole", "near-whole", "n-gram", "evaluation rows"]
    return Grid("Examples that share text, by their strongest match", head, rows, text_columns=2)


def pairs_of_texts(shown: Sequence[ShownOverlap]) -> str:
    """Write the pairs as HTML: one of each kind of match, and the others in a fold."""
    firsts = list({one.match: at for at, one in reversed(list(enumerate(shown)))}.values())[::-1]
    order = [*firsts, *(at for at in range(len(shown)) if at not in firsts)]
    articles = [_pair(at, shown[at]) for at in order]
    key = (
        '<ul class="key" aria-label="How to read the texts"><li><mark class="sample">underlined</mark>: words that '
        "both texts share</li><li>plain: in one of them only</li></ul>\n"
    )
    body = "".join(articles[: len(firsts)])
    if rest := articles[len(firsts) :]:
        body += f'<details class="fold"><summary>{len(rest):,} more</summary>\n{"".join(rest)}</details>'
    return f"{key}{body}"


def _pair(at: int, one: ShownOverlap) -> str:
    name = f"overlap-{at}"
    row = f" ({escaped(one.evaluation_id, 80)})" if one.evaluation_id else ""
    words = f"{escaped(one.match, 20)}, {share(one.share)} of its {escaped(one.kind, 20)}"
    return (
        f'<article class="row" aria-labelledby="{name}"><h4 id="{name}">'
        f'<span class="id">{escaped(one.id, 300)}</span>: {words}</h4><div class="pair">'
        + _side(f"{name}-a", "Example", f"source {escaped(one.source, 120)}", one.example, one.example_cut)
        + _side(
            f"{name}-b",
            "Evaluation row",
            f"{escaped(one.evaluation, 120)}, line {one.line:,}{row}",
            one.row,
            one.row_cut,
        )
        + "</div></article>\n"
    )


def _side(name: str, title: str, where: str, pieces: Sequence[OverlapPiece], cut: bool) -> str:
    text = "".join(_piece(piece) for piece in pieces)
    note = "; text left out" if cut else ""
    return (
        f'<section class="doc-text" id="{name}" aria-labelledby="{name}-title">'
        f'<h5 id="{name}-title"><span>{title}</span><span>{where}{note}</span></h5>'
        f'<pre tabindex="0" role="region" aria-labelledby="{name}-title">{text}</pre></section>'
    )


def _piece(piece: OverlapPiece) -> str:
    shown = escaped(piece.text, _PIECE)
    if not piece.shared:
        return shown
    return f'<mark><span class="hidden">[shared: </span>{shown}<span class="hidden">]</span></mark>'
