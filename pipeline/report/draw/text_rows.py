"""Shows packed rows as text, document by document, with trained text marked and a search by example id."""

from collections.abc import Sequence

from ....schemas.report import ShownDocument, ShownPair, ShownRow, ShownText
from ....schemas.units import plural, share
from .markup import escaped

PIECE = 6_000
"""Maximum number of characters of one piece of text."""
_STRIPS = "<li>strips: each block is a document; its darker lower part is trained</li>"


_CLASSES = {"thought": "thought", "tool call": "call"}
"""Class of each kind of text that has a colour of its own."""


def rows_markup(rows: Sequence[ShownRow]) -> str:
    """Write the rows as HTML, with a search field."""
    documents = sum(len(row.documents) for row in rows)
    kinds = {piece.kind for row in rows for document in row.documents for piece in document.pieces}
    key = "".join(
        f'<li><span class="{name}">{kind}s</span>: {how}</li>'
        for (kind, name), how in zip(_CLASSES.items(), ("italic", "dashed line"), strict=True)
        if kind in kinds
    )
    return _searched("documents", documents, [_row(at, row) for at, row in enumerate(rows)], key + _STRIPS)


def pairs_markup(pairs: Sequence[ShownPair]) -> str:
    """Write preference pairs as HTML, each with its three texts, and a search field."""
    return _searched("pairs", len(pairs), [_pair(at, pair) for at, pair in enumerate(pairs)])


def _searched(what: str, count: int, articles: Sequence[str], key: str = "") -> str:
    body = "".join(articles[:1])
    if len(articles) > 1:
        more = plural(len(articles) - 1, "more row" if key else "more pair")
        body += f'<details class="fold"><summary>{more}</summary>\n{"".join(articles[1:])}</details>'
    return (
        f'<p class="choose" hidden><label for="find">Find an example by its id among the {count:,} {what} shown</label>'
        f'<input type="search" id="find" aria-controls="rows" data-output="found" data-what="{what}" '
        'autocomplete="off" spellcheck="false">'
        f'<output id="found" aria-live="polite"></output></p>\n'
        f'<ul class="key" aria-label="How to read the rows"><li><mark class="sample">underlined</mark>: trained</li>'
        f"<li>plain: seen, not trained</li>{key}</ul>\n"
        f'<div id="rows">{body}</div>'
    )


def _pair(at: int, pair: ShownPair) -> str:
    parts = (("Prompt", pair.prompt), ("Chosen", pair.chosen), ("Rejected", pair.rejected))
    counts = ", ".join(f"{name.lower()} of {plural(text.tokens, 'token')}" for name, text in parts)
    texts = "".join(_text(f"pair-{at}-{name.lower()}", name, text) for name, text in parts)
    return (
        f'<article class="row" aria-labelledby="row-{at}">'
        f'<h4 id="row-{at}">Pair {pair.row:,} of {escaped(pair.split, 80)}</h4><p>{counts[:1].upper()}{counts[1:]}</p>'
        f"<details{' open' if at == 0 else ''}><summary>The text of all three</summary>"
        f'<section class="doc-text" id="pair-{at}" aria-labelledby="pair-{at}-id"><h5>'
        f'<span class="id" id="pair-{at}-id">{escaped(pair.id, 300)}</span>'
        f"<span>{escaped(pair.source, 120)}</span></h5>{texts}</section></details></article>\n"
    )


def _text(name: str, title: str, text: ShownText) -> str:
    counts = f"{plural(text.tokens, 'token')}{'; text left out' if text.shortened else ''}"
    pieces = "".join(_piece(piece.text, piece.trained) for piece in text.pieces)
    return (
        f'<h5 id="{name}"><span>{title}</span><span>{counts}</span></h5>'
        f'<pre tabindex="0" role="region" aria-labelledby="{name}">{pieces}</pre>'
    )


def _row(at: int, row: ShownRow) -> str:
    trained = sum(document.trained for document in row.documents)
    counts = (
        f"{row.tokens:,} of {plural(row.capacity, 'token')} ({share(row.tokens / max(row.capacity, 1))}), "
        f"{plural(len(row.documents), 'document')}, {trained:,} tokens trained"
    )
    texts = [_document(f"row-{at}-{place}", place, document) for place, document in enumerate(row.documents, 1)]
    # The first document of the first row is unfolded, so that the reader sees at once what is trained.
    shown = 0 if at else 1
    first, rest, more = "".join(texts[:shown]), "".join(texts[shown:]), "other " if shown else ""
    count = len(texts) - shown
    folded = f"<details><summary>The text of {plural(count, f'{more}document')}</summary>{rest}</details>"
    return (
        f'<article class="row" aria-labelledby="row-{at}">'
        f'<h4 id="row-{at}">Row {row.row:,} of {escaped(row.split, 80)}</h4>'
        f"<p>{counts}</p>{_strip(row, counts)}"
        f"{first}{folded if count else ''}</article>\n"
    )


def _strip(row: ShownRow, counts: str) -> str:
    """Draw the row as a strip, to scale: documents side by side, with trained tokens in the lower part."""
    whole = max(row.capacity, row.tokens, 1)
    scale = 1000 / whole
    shapes = [_rectangle("pad", 0, 1000, 0)]
    at = 0
    for document in row.documents:
        shapes.append(_rectangle("doc", at * scale, max(document.tokens * scale, 0.4), 0))
        start = at
        for piece in document.pieces:
            if piece.trained and piece.tokens > 0:
                shapes.append(_rectangle("on", start * scale, piece.tokens * scale, 14))
            start += piece.tokens
        at += document.tokens
    return (
        '<svg class="strip" viewBox="0 0 1000 32" preserveAspectRatio="none" role="img" '
        f'aria-label="The row to scale: {counts}">{"".join(shapes)}</svg>'
    )


def _rectangle(kind: str, x: float, width: float, y: int) -> str:
    return f'<rect class="{kind}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{32 - y}"></rect>'


def _document(name: str, place: int, document: ShownDocument) -> str:
    start = f", from its token {document.start:,} on" if document.start else ""
    counts = f"{plural(document.tokens, 'token')}{start}, {document.trained:,} trained"
    short = "; text left out" if document.shortened else ""
    pieces = "".join(_piece(piece.text, piece.trained, piece.kind) for piece in document.pieces)
    return (
        f'<section class="doc-text" id="{name}" aria-labelledby="{name}-id"><h5><span>{place}</span>'
        f'<span class="id" id="{name}-id">{escaped(document.id, 300)}</span>'
        f"<span>{escaped(document.source, 120)}</span><span>{counts}{short}</span></h5>"
        f'<pre tabindex="0" role="region" aria-label="Text of document {place}">{pieces}</pre></section>'
    )


def _piece(text: str, trained: bool, kind: str = "") -> str:
    shown = escaped(text, PIECE)
    if kind in _CLASSES:
        hidden = f'<span class="hidden">[{kind}: </span>'
        shown = f'<span class="{_CLASSES[kind]}">{hidden}{shown}<span class="hidden">]</span></span>'
    if not trained:
        return shown
    return f'<mark><span class="hidden">[trained: </span>{shown}<span class="hidden">]</span></mark>'
