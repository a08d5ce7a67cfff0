"""What to know when reading the comparison of lengths: what is not in it, and what is done otherwise than in a run."""

from collections.abc import Sequence

from ...schemas.config import RunConfig
from ...schemas.report import Choice, Point
from ...stages.stock import Stock
from ..windows import WINDOW_TOKENS
from .spoken import count, many, share

_WITH = "padded, padding-free and bfd"


def own_way(choice: Choice) -> str:
    """The strategy whose points are the configuration's, and what becomes of what is too long for it: `none` packs what
    `bfd` packs."""
    strategy = choice.strategy if choice.strategy in {one.strategy for one in choice.points} else "bfd"
    return f"{strategy} with overlong: {choice.overlong}" if strategy == "bfd" else strategy


def notes_on(points: Sequence[Point], config: RunConfig, stock: Stock, documents_in_all: int) -> list[str]:
    """A sentence each."""
    out = []
    if stock.held_out:
        more = documents_in_all / max(len(stock.lengths), 1)
        held = round(stock.held_out * more)
        about = "" if more == 1 else "about "
        out.append(
            f"{about}{count(held)} of {many(documents_in_all + held, 'document')} {'is' if held == 1 else 'are'} held "
            "out and not compared: all numbers here are of the train split."
        )
    if config.truncate.overlong == "split":
        out.append(
            f"With {_WITH}, what is longer than a row is split at {config.truncate.split.at}, as the configuration "
            "says; bfd_split and wrapped cut every so many tokens instead."
        )
    elif config.truncate.overlong == "drop":
        out.append(f"With {_WITH}, what is longer than a row is left out, as the configuration says.")
    elif config.truncate.overlong == "error":
        out.append(f"With {_WITH}, what is longer than a row is truncated here; the configuration stops a run over it.")
    out += _alignment(points, config)
    limit = config.pack.window_tokens or WINDOW_TOKENS
    if documents_in_all > len(stock.lengths) > 0 and stock.tokens / len(stock.lengths) * documents_in_all > limit:
        out.append(
            f"A run plans {count(limit)} tokens at a time, and what was read here at once: it has at most a few rows "
            "more for each such window."
        )
    return [one[:1].upper() + one[1:] for one in out]


def _alignment(points: Sequence[Point], config: RunConfig) -> list[str]:
    align, length = config.pack.align, config.truncate.max_length
    out = []
    known = config.pack.strategy if config.pack.strategy in ("bfd", "bfd_split") else "bfd"
    own = next((one for one in points if (one.strategy, one.max_length) == (known, length)), None)
    if align > 1 and own is not None and own.tokens:
        out.append(
            f"Pieces are padded to multiples of {align:,}: at {length:,} that is {share(own.padding / own.tokens, 2)} "
            f"more than the tokens of {known}; it is part of rows and work, and not of fill."
        )
    limits = [f"pack.{name}" for name, on in (("align", align > 1), ("max_docs", config.pack.max_docs)) if on]
    if limits:
        out.append(f"strategy wrapped is compared without {' and '.join(limits)}, which it cannot keep.")
    return out
