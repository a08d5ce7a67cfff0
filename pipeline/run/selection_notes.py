"""Says what the choice of documents found: what limits a mixture, and of which sources nothing is held out."""

from collections.abc import Iterator

from ...schemas.config.config import RunConfig
from ...schemas.ledger import Ledger
from ...schemas.reasons import NOT_DRAWN
from ...schemas.units import plural, share
from ..pack.pack import Selected
from ..pack.table import count_groups

_SOURCES = 6
"""A note names at most this many sources that do not limit the mixture."""


def selection_notes(config: RunConfig, selected: Selected) -> Iterator[str]:
    """What to say before packing."""
    mixture = on_mixture(config, selected.ledger)
    if mixture is not None:
        yield mixture
    yield from on_holdout(config, selected)


def on_mixture(config: RunConfig, ledger: Ledger) -> str | None:
    """Say which sources limit a mixture by weights, and how much the others give; None if there are no weights.

    A source limits it if it is used as often as its `repeat` allows or, in a mixture without any `repeat`, once: see
    `stages.select.copies.passes_of`.
    """
    if all(source.weight is None for source in config.sources):
        return None
    repeats = any(source.repeat is not None for source in config.sources)
    limits, others = list[str](), list[tuple[float, str]]()
    for source in config.sources:
        entry, name = ledger.sources[source.name], source.name
        drawn, left = entry.examples_packed.get("train", 0), entry.examples_dropped.get(NOT_DRAWN, 0)
        most = source.repeat if repeats else 1
        if not drawn + left:
            continue
        if most is not None and not left and entry.examples_repeated == (most - 1) * drawn:
            limits.append(f"{name} ({f'repeat {most:,}' if repeats else 'the most tokens for its weight, used once'})")
        elif left:
            part = left / (drawn + left)
            others.append((-part, f"{left:,} of {plural(drawn + left, 'example')} of {name} are not drawn"))
        else:
            others.append((0.0, f"{name} is used {(drawn + entry.examples_repeated) / drawn:.2f} times"))
    if not limits:
        return None  # every example is held out, or left out for another reason
    said = [text for _, text in sorted(others, key=lambda one: one[0])[:_SOURCES]]
    if len(others) > _SOURCES:
        said.append(f"and so on for {plural(len(others) - _SOURCES, 'other source')}")
    return "; ".join([f"the mixture is limited by {' and '.join(limits)}", *said])


def on_holdout(config: RunConfig, selected: Selected) -> Iterator[str]:
    """Name the sources of which nothing is held out although the configuration asks for it."""
    fraction = config.holdout.fraction
    for number, source in enumerate(config.sources) if fraction else ():
        packed = selected.ledger.sources[source.name].examples_packed
        if not packed.get("train") or packed.get("holdout"):
            continue
        groups = plural(count_groups(selected.table, number, config), "group")
        yield (
            f"nothing of source {source.name} is held out: it has {groups}, and holdout.fraction is {share(fraction)}; "
            "raise it, or give the source more groups"
        )
