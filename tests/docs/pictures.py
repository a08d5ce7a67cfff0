"""The pictures of docs/images, drawn from what real runs gave: plain SVG, light and dark, without fonts of its own.

What is trained is marked by a filled box with a tick and not by colour alone; `title` and `desc` say it in words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """
.ground{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}.line{stroke:#c8ced6}
.on{fill:#cfe8d4;stroke:#1a7f37}.tick{fill:#116329}.off{fill:#f1f3f5;stroke:#c8ced6}.mark{stroke:#9a6700;fill:none}
text{font:14px ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}.small{font-size:12px}
.strong{font-weight:600}.middle{text-anchor:middle}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9ea7b3}.line{stroke:#3d444d}
.on{fill:#12391f;stroke:#3fb950}.tick{fill:#7ee787}.off{fill:#1b212a;stroke:#3d444d}.mark{stroke:#d29922}}
"""
_LETTER = 8.5
"""Width of a letter of code, of any font it may fall back on."""


@dataclass(frozen=True, slots=True)
class Column:
    """One way to mask a text."""

    name: str
    trained: list[bool]
    """For each character of the text."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a packed row."""

    text: str
    label: str
    """`−100` where it is not trained."""
    position: int


def _svg(title: str, description: str, width: float, height: float, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-labelledby="title desc">\n'
        f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect class="ground" width="{width:g}" height="{height:g}" rx="6"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, kind: str = "ink") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" xml:space="preserve">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="{kind}"/>'


def _shown(text: str) -> str:
    return text.replace("\n", "⏎")


def stretches(text: str, columns: Sequence[Column]) -> list[tuple[str, list[bool]]]:
    """The text in pieces that no mask cuts through, none across a line's end or a turn's beginning."""
    out: list[tuple[str, list[bool]]] = []
    for place, letter in enumerate(text):
        here = [column.trained[place] for column in columns]
        new = not out or out[-1][1] != here or text.startswith("<|im_start|>", place)
        if new or (out[-1][0].endswith("\n") and letter != "\n"):
            out.append((letter, here))
        else:
            out[-1] = (out[-1][0] + letter, here)
    return out


def masks(title: str, text: str, columns: Sequence[Column]) -> str:
    """One text down the left, a column a mask, a tick where its tokens are trained."""
    lines = stretches(text, columns)
    left = 28 + max(len(_shown(piece)) for piece, _ in lines) * _LETTER
    wide = max(92.0, *(len(column.name) * _LETTER + 14 for column in columns))
    width, height = left + wide * len(columns) + 12, 52 + 26.0 * len(lines) + 14
    parts = [_text(16, 30, "text", "soft")]
    for number, column in enumerate(columns):
        parts.append(_text(left + wide * (number + 0.5), 30, column.name, "ink code strong middle"))
    for number, (piece, trained) in enumerate(lines):
        top = 44 + 26.0 * number
        if piece.startswith("<|im_start|>"):
            parts.append(f'<path d="M12 {top:g}H{width - 12:g}" class="line"/>')
        parts.append(_text(16, top + 18, _shown(piece), "ink code" if any(trained) else "soft code"))
        for which, on in enumerate(trained):
            middle = left + wide * (which + 0.5)
            if on:
                parts.append(_box(middle - 34, top + 3, 68, 20, "on"))
                parts.append(_text(middle, top + 18, "✓", "tick strong middle"))
            else:
                parts.append(_text(middle, top + 18, "·", "soft middle"))
    said = []
    for which, column in enumerate(columns):
        pieces = [_shown(piece) for piece, trained in lines if trained[which]]
        said.append(f"{column.name} trains: {' | '.join(pieces) or 'nothing'}.")
    return _svg(title, " ".join(said), width, height, parts)


def packed_row(title: str, documents: Sequence[Sequence[Token]]) -> str:
    """The tokens of a row, document after document, with labels, positions, and what each label is predicted from."""
    tokens = [(number, token) for number, document in enumerate(documents) for token in document]
    widths = [max(len(_shown(token.text)), len(_shown(token.label)), 3) * _LETTER + 12 for _, token in tokens]
    left, gap = 126.0, 26.0
    xs, x = [], left
    for index, width in enumerate(widths):
        if index and tokens[index][0] != tokens[index - 1][0]:
            x += gap
        xs.append(x)
        x += width + 5
    parts = [
        _text(16, 78, "input_ids", "ink code"),
        _text(16, 154, "labels", "ink code"),
        _text(16, 196, "position_ids", "ink code"),
    ]
    for index, (document, token) in enumerate(tokens):
        at, width = xs[index], widths[index]
        trained = token.label != "−100"
        if not index or tokens[index - 1][0] != document:
            parts.append(_text(at, 32, f"document {document + 1}", "ink strong"))
            if index:
                line = at - gap / 2 - 2
                parts.append(f'<path d="M{line:g} 18V208" class="mark" stroke-width="2" stroke-dasharray="5 4"/>')
        middle = at + width / 2
        parts += [
            _box(at, 60, width, 28, "off"),
            _text(middle, 79, _shown(token.text).replace(" ", "␣"), "ink code middle"),
            _box(at, 136, width, 28, "on" if trained else "off"),
            _text(
                middle,
                155,
                _shown(token.label).replace(" ", "␣"),
                ("tick strong" if trained else "soft") + " code middle",
            ),
            _text(middle, 196, str(token.position), "ink code middle"),
        ]
        if trained:
            before = xs[index - 1] + widths[index - 1] / 2
            parts.append(
                f'<path d="M{before:g} 90C{before:g} 114 {middle:g} 108 {middle:g} 130m-4 -7l4 7l4 -7" '
                'class="mark" stroke-width="1.5"/>'
            )
    said = "; ".join(
        f"document {number + 1}: "
        + ", ".join(f"{_shown(one.text)} at position {one.position} with label {_shown(one.label)}" for one in document)
        for number, document in enumerate(documents)
    )
    return _svg(title, said, x + 12, 216, parts)


@dataclass(frozen=True, slots=True)
class Step:
    """The rows after all sequences of one length and the longer ones are placed."""

    length: int
    count: int
    rows: list[list[int]]
    """Lengths in each row, as they were placed."""


def planning(title: str, capacity: int, steps: Sequence[Step]) -> str:
    """Rows as bars after each length, the new sequences filled."""
    unit, tall = 22.0, 24.0
    panel = capacity * unit + 44
    most = max(len(step.rows) for step in steps)
    across = 2
    height_each = 40 + most * (tall + 5) + 14
    down = -(-len(steps) // across)
    parts = []
    for number, step in enumerate(steps):
        x0, y0 = 18 + (number % across) * panel, 10 + (number // across) * height_each
        parts.append(_text(x0, y0 + 20, f"{number + 1}. {step.count} of length {step.length}", "ink strong"))
        for place, row in enumerate(step.rows):
            y = y0 + 34 + place * (tall + 5)
            parts.append(f'<rect x="{x0:g}" y="{y:g}" width="{capacity * unit:g}" height="{tall:g}" rx="3" '
                         'class="line" fill="none" stroke-dasharray="3 3"/>')  # fmt: skip
            x = x0
            for length in row:
                new = length == step.length
                parts.append(_box(x + 1, y + 1, length * unit - 2, tall - 2, "on" if new else "off"))
                kind = "tick strong" if new else "soft"
                parts.append(_text(x + length * unit / 2, y + 17, str(length), f"{kind} code middle"))
                x += length * unit
    said = " ".join(
        f"After {step.count} of length {step.length}: rows "
        + "; ".join("+".join(map(str, row)) for row in step.rows)
        + "."
        for step in steps
    )
    return _svg(title, said, panel * min(across, len(steps)) + 10, down * height_each + 14, parts)
