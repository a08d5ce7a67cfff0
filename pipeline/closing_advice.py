"""What a finished run advises: on trained tokens that the limits lose, on glued pairs, and on duplicates."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..schemas.config import RunConfig
from ..schemas.hints import setting
from ..schemas.ledger import SourceLedger
from .catalogue import Holdout, PartPlace, read_catalogue
from .encoding import EncodedInputs, Encoding
from .report.spoken import share
from .selecting import Chosen, limits_of, mask_of, select_alone
from .survey import Survey
from .windows import LOT_DOCUMENTS, groups

_CUT = "cut_untrained"
_DOUBLINGS = 4
"""Of `max_length`, that are tried."""
_BY_LENGTH = {_CUT, "cut_empty", "cut_equal", "overlong", "untrained_piece", "untrained"}
"""Reasons to drop tokens that follow from the limits, or under which no token would have been trained anyway."""
_MUCH = 0.01
"""Share of the trained tokens whose loss is reported."""


def closing_advice(
    config: RunConfig, survey: Survey, encoding: Encoding, encoded: EncodedInputs, total: SourceLedger
) -> list[str]:
    """What a person may want to change, what matters most first.

    Args:
        total: of the finished run.
    """
    sizes = [record.examples for record in encoded.records]
    found = (
        on_lost(config, total),
        on_untrained(config, encoded.places, sizes, encoded.spec.tokenizer_json, total),
        # Notes from the beginning of the run, which have scrolled away by now.
        *(form.joints for form in encoding.formats.values()),
        on_duplicates(survey, total),
    )
    return [line for line in found if line is not None]


def on_lost(config: RunConfig, total: SourceLedger) -> str | None:
    """How many of the trained tokens the configured length loses; None where that is 1 % at most.

    Examples that were dropped for other reasons are not counted as lost to the length: the ledger does not say how many
    trained tokens each reason took, so where there are such reasons only what was cut off packed examples counts.

    Args:
        total: of the finished run.
    """
    asked = total.asked_encoded + total.asked_repeated
    exact = total.tokens_dropped.keys() <= _BY_LENGTH
    lost = total.asked_truncated + (total.asked_dropped if exact else 0)
    if lost <= _MUCH * asked:
        return None
    limits = config.truncate.max_completion_length is not None or config.truncate.max_prompt_length is not None
    where = "with the configured limits" if limits else f"at max_length {config.truncate.max_length:,}"
    least = "" if exact else "at least "
    return f"{where}, {least}{share(lost / asked)} of the trained tokens are lost ({lost:,} of {asked:,})"


def on_duplicates(survey: Survey, total: SourceLedger) -> str | None:
    """How many packed examples say the same as an earlier one; None where none does, or duplicates are dropped.

    Args:
        total: of the finished run.
    """
    count = survey.repeats.count() if survey.repeats is not None else 0
    packed = sum(total.examples_packed.values())
    if survey.repeats is None or not count:
        return None
    about = "about " if survey.repeats.share > 1 else ""
    return (
        f"{about}{count:,} of {packed:,} packed examples ({count / packed:.1%}) say the same as an earlier one; "
        f"{setting('duplicates', 'drop')} leaves them out"
    )


def on_untrained(
    config: RunConfig, places: Sequence[PartPlace], sizes: Sequence[int], tokenizer_json: str, total: SourceLedger
) -> str | None:
    """Which settings would keep the examples of which truncation leaves nothing to train, and how many of them.

    Decides about the examples again, as the run did, under each setting; of very many, about the first ones.

    Args:
        places, sizes: all encoded parts, and the documents of each.
        total: of the finished run.
    """
    dropped = total.examples_dropped.get(_CUT, 0)
    if not dropped:
        return None
    ways = list(_alternatives(config))
    kept, found, looked = [0] * len(ways), 0, 0
    for group in groups(np.arange(len(places)), np.array(sizes, dtype=np.int64), LOT_DOCUMENTS):
        parts = [places[index] for index in group.tolist()]
        cut = _decided(parts, config, tokenizer_json).selection.left_out(_CUT)
        for number, (_, changed) in enumerate(ways if cut.any() else ()):
            kept[number] += int((cut & _decided(parts, changed, tokenizer_json).packed).sum())
        found, looked = found + int(cut.sum()), looked + len(cut)
        if looked >= LOT_DOCUMENTS:
            break
    of = "them" if looked == sum(sizes) else f"the {found:,} among the first {looked:,}"
    said, most = [], 0
    for (hint, changed), count in zip(ways, kept, strict=True):
        longer = changed.truncate.max_length > config.truncate.max_length
        if count and not (longer and count <= most):  # twice the length again must keep more
            said.append(f"{hint} keeps {count:,}")
        most = max(most, count) if longer else most
    what = f"truncation left nothing to train in {dropped:,} of {total.examples_made:,} examples, which were dropped"
    return f"{what}; of {of}, {', '.join(said)}" if said else what


def _alternatives(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """Settings that may keep what is cut, as this person would write them, and the configuration with each."""
    truncate = config.truncate
    if config.mask.policy in ("completion", "last_assistant") and all(s.expand == "none" for s in config.sources):
        yield setting("mask", "assistant"), _with(config, "mask", policy="assistant")
    if truncate.keep == "start" and truncate.overlong == "truncate" and config.pack.strategy in ("bfd", "none"):
        yield setting("truncate.keep", "end"), _with(config, "truncate", keep="end")
    for power in range(1, _DOUBLINGS + 1):
        if (length := truncate.max_length << power) <= 1 << 24:
            yield setting("truncate.max_length", length), _with(config, "truncate", max_length=length)


def _with(config: RunConfig, section: str, **keys: Any) -> RunConfig:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=keys)})


def _decided(parts: Sequence[PartPlace], config: RunConfig, tokenizer_json: str) -> Chosen:
    """What becomes of the documents of some parts, each by itself."""
    names = [source.name for source in config.sources]
    holdout = Holdout(config.holdout.fraction, config.holdout.by == "group", config.seed)
    catalogue = read_catalogue(parts, mask_of(config), limits_of(config), holdout, names)
    return select_alone(catalogue, config, mask_of(config), tokenizer_json)
