"""Which losses of preference pairs there are, what each needs, and why others are not here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreferenceKind:
    """What a loss needs."""

    needs_reference: bool = False
    """It compares log-probabilities with a reference model's."""
    per_token: bool = False
    """It compares log-probabilities per trained token, and so needs their number."""
    scores: bool = False
    """It compares scores of a reward model, and no log-probabilities."""


LOSSES = {
    "dpo": PreferenceKind(needs_reference=True),
    "ipo": PreferenceKind(needs_reference=True, per_token=True),
    "simpo": PreferenceKind(per_token=True),
    "orpo": PreferenceKind(per_token=True),
    "reward": PreferenceKind(scores=True),
}
"""Every loss by its name. `training/preference/losses.py` has the formulas, and computes them."""
_SINGLE_ANSWERS = (
    "it takes single answers that are good or bad, and estimates a term from answers to other prompts; rows hold pairs"
)
_PER_TOKEN = "it weighs tokens by a reference of each token, and only sums over documents are kept"
_ONLINE = "it generates while it trains; rows are packed before"
REFUSED_LOSSES = {
    **dict.fromkeys(("kto", "bco"), _SINGLE_ANSWERS),
    **dict.fromkeys(("tdpo", "ld_dpo", "ld-dpo"), _PER_TOKEN),
    **dict.fromkeys(("ppo", "grpo", "rloo", "online_dpo"), _ONLINE),
}
"""Losses that people may ask for → why they are not here."""


def refuse_loss(name: str) -> str | None:
    """Why a loss cannot be trained, as a sentence; None if it can."""
    if name in LOSSES:
        return None
    choices = f"choose one of {', '.join(LOSSES)}"
    reason = REFUSED_LOSSES.get(name.lower())
    if reason is None:
        return f"{name!r} is not a loss of pairs: {choices}"
    return f"{name} is not supported: {reason}; {choices}"
