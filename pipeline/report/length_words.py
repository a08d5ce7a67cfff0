"""What is said of a length: the advice in a sentence, and what is wrong with the configured one."""

from collections.abc import Iterator

from ...schemas.report import Choice, Flow, Point
from ...schemas.units import plural, share
from .lengths import KEEPS, lost_at, whole_at

MUCH = 0.05
"""Lost share of a source's tokens from which the report warns of it."""
_BY_LENGTH = ("overlong", "cut_untrained", "untrained_piece")
"""Reasons for dropped tokens that a limit causes."""
_FEW = 3
"""At most so many documents, if they alone decide the advice, are named."""
_GAIN = 0.0005
"""Share of trained tokens from which it is said what the next longer length would keep."""


def own_point(choice: Choice) -> Point:
    """The configured strategy at the configured length."""
    return point_at(choice, choice.max_length)


def advice_sentence(choice: Choice) -> str:
    """What the advised length keeps, and what the next one would; empty if there is no advice."""
    advice = choice.advice
    if advice is None:
        return ""
    point, what = point_at(choice, advice.max_length), counted_tokens(choice)
    kept = f"{_all(1 - lost_at(point))} of the {what}"
    if choice.cuts:
        kept += f" and leaves {share(whole_at(point))} of documents whole"
    if not advice.reached:
        said = f"keeps {kept}, and no compared length that may be advised keeps enough"
    else:
        said = f"is enough: it keeps {kept}" if advice.max_length == choice.max_length else f"keeps {kept}"
    words = f"max_length {advice.max_length:,} {said}"
    after = [one for one in choice.points if one.max_length > advice.max_length]
    if after and lost_at(point) - lost_at(after[0]) >= _GAIN:
        more, gain = after[0].tokens / max(point.tokens, 1) - 1, lost_at(point) - lost_at(after[0])
        words += (
            f"; {after[0].max_length:,} would keep {share(gain, 2)} more, with {share(more)} more tokens to compute"
        )
    if 0 < advice.longer <= _FEW and choice.longest:
        than = max((one.max_length for one in choice.points if one.max_length < advice.max_length), default=0)
        named = "; ".join(f"{id}, {tokens:,} tokens" for id, tokens in choice.longest if tokens > than)
        words += f". Only {plural(advice.longer, 'document is', 'documents are')} longer than {than:,}: {named}"
    if choice.texts and not choice.cuts and lost_at(own_point(choice)) > 1 - KEEPS:
        words += ". These are plain texts: pack.strategy=bfd_split cuts them into pieces, and packs all tokens"
    return f"{words}."


def warnings_of(choice: Choice) -> Iterator[str]:
    """What is wrong with the configured length for the model."""
    length, limit = choice.max_length, choice.limit
    if choice.over_limit is not None and limit is not None and limit.reason:
        harm = f"{plural(choice.over_limit, 'document')} {'is' if choice.over_limit == 1 else 'are'} longer"
        if not choice.over_limit:
            harm = "harmless, as no document is longer"
        yield f"max_length {length:,} is above what the model is made for: {limit.reason}; {harm}."


def losing_sources(flow: Flow) -> Iterator[str]:
    """Which of several sources lose much of their text to the configured limits."""
    gone = {
        name: (sum(one.tokens_truncated.values()) + sum(one.tokens_dropped.get(reason, 0) for reason in _BY_LENGTH))
        / max(one.tokens_encoded, 1)
        for name, one in flow.sources.items()
    }
    hit = sorted((name for name, part in gone.items() if part >= MUCH), key=lambda name: -gone[name])
    if hit and len(gone) > 1:
        named = ", ".join(f"{name} {share(gone[name])}" for name in hit[:3])
        more = f", and {len(hit) - 3:,} more sources lose much" if len(hit) > 3 else ""
        yield f"Of their tokens, these sources lose to the limits: {named}{more}."


def point_at(choice: Choice, length: int) -> Point:
    """The counts at a length, which is among those compared."""
    return next(one for one in choice.points if one.max_length == length)


def counted_tokens(choice: Choice) -> str:
    """What losses are counted in, in words."""
    return "trained tokens" if any(one.labels + one.labels_lost for one in choice.points) else "tokens"


def _all(kept: float) -> str:
    return "all" if kept == 1 else share(kept, 2)
