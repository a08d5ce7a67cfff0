"""What is trained of each source."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....schemas.ledger import Ledger, SourceLedger
from ....schemas.report import Histogram, KindCount, SourceShare, Training
from ....schemas.units import plural, share
from .flow import asked_left, is_packed
from .lengths.histograms import Tally
from .lengths.packed import Spread, Spreads
from .rows.shown import Shown

_UNTRAINED = ("untrained", "cut_untrained")
_DROPPED = {
    "reasoning": "reasoning of the assistant",
    "system": "the system message",
    "assistant": "contents of the assistant",
    "tool_calls": "tool calls",
    "tool_results": "tool results",
    "tools": "the list of tools",
}
"""Key of `template_dropped` → words for a sentence."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Tokens that the mask selects but that are first in their piece, so never trained; as known before packing."""

    by_source: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
    """Whether the strategy will add more of them, because it cuts documents itself."""
    weighted: bool = False
    """Whether the rows will have loss weights."""


def training_of(
    ledger: Ledger,
    spreads: Spreads | None = None,
    shown: Shown | None = None,
    heads: Heads | None = None,
    policy: str | None = None,
) -> Training:
    """What is trained, of a finished run or before packing.

    Args:
        spreads: length statistics of examples; None if unknown.
        shown: packed rows or pairs as text; None before packing.
        heads: needed before packing only; the ledger of a finished run has them.
        policy: the mask's, to name it.
    """
    most = max((one.lengths.most for one in spreads.sources.values()), default=0) if spreads is not None else 0
    heads = heads or Heads()
    sources = []
    for name, entry in ledger.sources.items():
        spread = spreads.sources.get(name) if spreads is not None else None
        sources.append(_share(name, entry, spread, spreads, most, heads))
    shown = shown or Shown(absent="There are no rows yet: the data is not packed.")
    return Training(_sentence(ledger.total(), spreads, heads, policy), sources, shown.rows, shown.absent, shown.pairs)


def _share(
    name: str, entry: SourceLedger, spread: Spread | None, spreads: Spreads | None, most: int, heads: Heads
) -> SourceShare:
    """One source. The bins of all histograms reach to `most`, so that sources can be compared."""
    exact, exact_runs = (spreads.exact, spreads.exact_runs) if spreads is not None else (True, True)
    return SourceShare(
        source=name,
        examples=sum(entry.examples_packed.values()),
        tokens=entry.document_tokens,
        labels=labels_of(entry, heads.by_source.get(name, 0)),
        turns=entry.turns_trained,
        turns_without_end=entry.turns_without_end,
        turns_cut=entry.turns_cut,
        straddles=entry.straddles,
        boundaries=entry.boundaries,
        without_labels=entry.examples_without_labels,
        untrained=sum(entry.examples_dropped.get(reason, 0) for reason in _UNTRAINED),
        lengths=_logarithmic(spread.lengths, exact, most) if spread is not None else None,
        prompts=_logarithmic(spread.prompts, exact_runs, most) if spread is not None else None,
        completions=_logarithmic(spread.completions, exact_runs, most) if spread is not None else None,
        turns_each=spread.turns.even(exact=exact_runs) if spread is not None and spread.turns.count else None,
        truncated=entry.examples_truncated + entry.examples_split,
        weight=entry.weight_trained or None,
        kinds=[KindCount(kind, *both) for kind, both in spread.kinds.items() if both[0]] if spread is not None else [],
    )


def labels_of(entry: SourceLedger, heads: int = 0) -> int:
    """The number of trained tokens.

    Args:
        heads: before packing, the selected tokens that are first in their piece.
    """
    return entry.labels_trained if is_packed(entry) else asked_left(entry) - heads


def _logarithmic(tally: Tally, exact: bool, most: int) -> Histogram | None:
    return tally.logarithmic(exact=exact, most=most) if tally.count else None


def _sentence(total: SourceLedger, spreads: Spreads | None, heads: Heads, policy: str | None) -> str:
    if not total.tokens_packed:
        return "Nothing is packed, so nothing is trained."
    labels = labels_of(total, sum(heads.by_source.values()))
    packed = (
        "the packed tokens" if total.document_tokens == total.tokens_packed else "the packed tokens without padding"
    )
    words = [f"The loss falls on {share(labels / total.document_tokens)} of {packed}, {plural(labels, 'token')}"]
    if total.turns_trained:
        words[0] += f" in {plural(total.turns_trained, 'turn')} of the assistant"
    words[0] += f" (mask: {policy})." if policy else "."
    if total.weight_trained:
        words.append("Tokens have loss weights: a trainer that ignores them trains another objective.")
    if heads.weighted:
        words.append(
            "Tokens will have loss weights. A plan counts every trained token once; a run adds up the weights."
        )
    if heads.more:
        words.append("This still counts first tokens of the pieces that the strategy cuts, which are never trained.")
    if total.turns_without_end:
        what = "of them has" if total.turns_without_end == 1 else "of them have"
        words.append(f"{total.turns_without_end:,} {what} no end-of-turn token, so the model does not learn to stop.")
    if total.turns_stop_next:
        ended = plural(total.turns_stop_next, "turn")
        words.append(f"The stop token of {ended} begins the next message's header, and is trained there.")
    if total.turns_cut:
        words.append(f"{plural(total.turns_cut, 'cut')} went through trained turns.")
    dropped = sum(total.examples_dropped.get(reason, 0) for reason in _UNTRAINED)
    if dropped:
        words.append(
            f"{plural(dropped, 'example')} without a trained token {'was' if dropped == 1 else 'were'} dropped."
        )
    if total.examples_without_labels:
        words.append(f"{plural(total.examples_without_labels, 'packed example')} without a trained token are kept.")
    if total.straddles:
        words.append(
            f"{total.straddles:,} of {plural(total.boundaries, 'prompt/answer boundary', 'prompt/answer boundaries')} "
            f"{'falls' if total.straddles == 1 else 'fall'} inside a token; such tokens are trained."
        )
    for what, number in sorted(total.template_dropped.items()):
        words.append(
            f"The chat template leaves out {_DROPPED.get(what, what)} in {plural(number, 'example')}; the model never "
            "sees it."
        )
    odd = {"an unknown role": total.unknown_roles, "special tokens in contents": total.control_tokens}
    for what, counts in odd.items():
        if counts:
            names = ", ".join(f"{name} ({number:,})" for name, number in counts.items())
            words.append(f"Conversations with {what}: {names}.")
    if total.turns_sampled:
        words.append(_proof(total.turns_sampled))
    if spreads is not None and spreads.missing_runs is not None:
        words.append(f"The lengths of prompts and completions are no longer known: {spreads.missing_runs}.")
    return " ".join(words)


_OUTCOMES = {
    "exact": "{} trained as a model would sample them",
    "prefix_differs": "the text before {} is not the prompt that a model would be given",
    "past_stop": "{} more after a stop token",
    "stop_in_next_header": "the stop token of {} begins the next message's header",
    "stop_missing": "{} no stop token",
    "unproved": "{} not located",
}
"""Outcome of the sampling proof → words for a list; `{}` is how many turns."""


def _proof(outcomes: Mapping[str, int]) -> str:
    """The sampling proof in a sentence."""
    verbs = {"exact": ("is", "are"), "past_stop": ("has", "have"), "stop_missing": ("has", "have")} | {
        "unproved": ("was", "were")
    }
    said = []
    for outcome, words in _OUTCOMES.items():
        if count := outcomes.get(outcome, 0):
            verb = f" {verbs[outcome][count > 1]}" if outcome in verbs else ""
            said.append(words.format(f"{count:,}{verb}"))
    return f"Of {plural(sum(outcomes.values()), 'turn')} that were proved against sampling: {'; '.join(said)}."
