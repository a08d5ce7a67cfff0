"""What `pack.align` and `pack.parallel` cost: padding, and rows that would not be needed without it."""

from ....schemas.alignment import Alignment
from ....schemas.report import PaddingCost, Point
from ....schemas.units import plural, share


def padding_cost(
    why: str, alignment: Alignment, rows: int, max_length: int, tokens: int, without: int | None, about: str = ""
) -> PaddingCost | None:
    """What padding costs; None if nothing is padded.

    Args:
        why: the keys that ask for it; see `schemas.alignment.why_padded`.
        tokens: tokens of padding in the rows.
        without: rows that the same pieces need without padding; None if unknown.
        about: what to say before numbers that are not counted, such as `about `.
    """
    if not alignment.pads or not rows:
        return None
    what = " and ".join(f"{one} to multiples of {multiple:,}" for one, multiple in _multiples(alignment))
    part = tokens / (rows * max_length)
    words = f"For {why}, packtrain pads {what}: {about}{plural(tokens, 'token')}, {share(part, 2)} of the rows"
    more = None if without is None else max(rows - without, 0)
    if more is not None:
        before = "" if about == "at most " else about
        words += f", and {before}{plural(more, 'row')} more than without it" if more else ", and no more rows"
    return PaddingCost(f"{words}.", alignment.document, alignment.row, tokens, part, more)


def expected_padding(point: Point, alignment: Alignment) -> int:
    """The most padding of the rows of a comparison, which knows that of pieces, and not that behind the last piece."""
    behind = (alignment.row - alignment.document) * point.rows
    return point.padding + max(min(behind, point.slots - point.tokens - point.padding), 0)


def _multiples(alignment: Alignment) -> list[tuple[str, int]]:
    pieces = [("pieces", alignment.document)] if alignment.document > 1 else []
    return [*pieces, *([("rows", alignment.row)] if alignment.row > alignment.document else [])]
