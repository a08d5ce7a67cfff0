"""Writes the notes on the comparison of lengths: what it leaves out, and where it differs from a run."""

from collections.abc import Sequence

from ....schemas.config.config import RunConfig
from ....schemas.report import Choice, Point
from ....schemas.units import exact, plural, share
from ....stages.forecast.length_stats import LengthStats
from ...pack.windows import WINDOW_TOKENS

_WITH = "padded, padding-free and bfd"


def own_way(choice: Choice) -> str:
    """Name the configured strategy, and how it treats long documents. `none` is called `bfd`, which packs the same
    tokens.
    """
    strategy = choice.strategy if choice.strategy in {one.strategy for one in choice.points} else "bfd"
    return f"{strategy} with overlong: {choice.overlong}" if strategy in ("bfd", "tight") else strategy


def notes_on(
    points: Sequence[Point], config: RunConfig, stats: LengthStats, documents_in_all: int, lengths: Sequence[int] = ()
) -> list[str]:
    """Return the notes that apply, one sentence each.

    Args:
        lengths: the lengths to compare, before they were rounded to what rows are padded to.
    """
    out = []
    if stats.held_out:
        more = documents_in_all / max(len(stats.lengths), 1)
        held = round(stats.held_out * more)
        about = "" if more == 1 else "about "
        out.append(
            f"{about}{exact(held)} of {plural(documents_in_all + held, 'document')} {'is' if held == 1 else 'are'} "
            "held out and not compared: all numbers here are of the train split."
        )
    if config.truncate.overlong == "split":
        out.append(
            f"With {_WITH}, documents longer than a row are split at {config.truncate.split.at}, as configured; "
            "bfd_split and wrapped cut after a fixed number of tokens instead."
        )
    elif config.truncate.overlong == "drop":
        out.append(f"With {_WITH}, documents longer than a row are left out, as configured.")
    elif config.truncate.overlong == "error":
        out.append(
            f"With {_WITH}, documents longer than a row are truncated in this comparison; in a run they are an "
            "error, as configured."
        )
    out += _rounded(config, lengths)
    out += _alignment(points, config)
    limit = config.pack.window_tokens or WINDOW_TOKENS
    if documents_in_all > len(stats.lengths) > 0 and stats.tokens / len(stats.lengths) * documents_in_all > limit:
        out.append(
            f"A run plans windows of {exact(limit)} tokens, but this comparison plans all documents at once: a run "
            "has at most a few more rows per window."
        )
    return [one[:1].upper() + one[1:] for one in out]


def _rounded(config: RunConfig, lengths: Sequence[int]) -> list[str]:
    multiple = config.pack.alignment.row
    odd = [one for one in lengths if one % multiple]
    if not odd:
        return []
    named = [f"{one:,} to {one - one % multiple:,}" if one > multiple else f"{one:,} to nothing" for one in odd[:3]]
    more = f" and {len(odd) - 3:,} more" if len(odd) > 3 else ""
    return [
        f"For {config.pack.padded_for}, lengths are rounded down to multiples of {multiple:,}: "
        f"{', '.join(named)}{more}."
    ]


def _alignment(points: Sequence[Point], config: RunConfig) -> list[str]:
    padding, length = config.pack.alignment, config.truncate.max_length
    out = []
    known = config.pack.strategy if config.pack.strategy in ("bfd", "tight", "bfd_split") else "bfd"
    own = next((one for one in points if (one.strategy, one.max_length) == (known, length)), None)
    if padding.document > 1 and own is not None and own.tokens:
        out.append(
            f"Pieces are padded to multiples of {padding.document:,}: at {length:,} with {known} that adds "
            f"{share(own.padding / own.tokens, 2)} to the tokens. Rows and work include it, fill does not."
        )
    if padding.row > padding.document:
        most = padding.row - padding.document
        out.append(
            f"Rows are padded to multiples of {padding.row:,} behind their last piece, by at most {most:,} each; that "
            "needs no more rows, and the work does not include it."
        )
    pieces = config.pack.parallel is not None and padding.document > config.pack.align
    on = {"align": config.pack.align > 1, "parallel": pieces, "max_docs": config.pack.max_docs is not None}
    if limits := [f"pack.{name}" for name, given in on.items() if given]:
        out.append(f"strategy wrapped is compared without {' and '.join(limits)}, which it does not support.")
    return out
