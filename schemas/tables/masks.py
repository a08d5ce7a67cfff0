"""The mask policies: which turns of a conversation are trained.

Whoever checks or describes policies takes what they do from here. The kinds of spans that each trains are in
`stages/mask/policy.py`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Policy:
    """What a policy trains of conversations. A plain text is trained as a whole under each."""

    name: str
    sentence: str
    """What it trains, for the configuration's key, the command line and the card."""
    suits: str
    """The data that it is for, for the documentation."""
    trains_turns: bool = False
    """Whether it trains turns of the assistant and nothing between them, so that they must be located."""
    trains_last_turn_only: bool = False
    trains_every_token: bool = False
    """Whether it trains tokens of every kind; then `train_end: false` has no effect."""

    @property
    def trains_earlier_turns(self) -> bool:
        """Whether it trains turns before the completion for their own sake."""
        return self.trains_turns and not self.trains_last_turn_only


POLICIES = {
    policy.name: policy
    for policy in (
        Policy(
            "completion",
            "everything after the prompt, which is everything before a last assistant message",
            "one answer per example; any template",
        ),
        Policy(
            "assistant",
            "every assistant turn, with tool calls, without headers",
            "conversations of several turns",
            trains_turns=True,
        ),
        Policy(
            "last_assistant",
            "the last of these turns",
            "conversations whose earlier answers are context only",
            trains_turns=True,
            trains_last_turn_only=True,
        ),
        Policy("all", "every token", "continued pretraining on conversations", trains_every_token=True),
    )
}
"""Every policy by its name, in the order in which they are explained."""

if TYPE_CHECKING:
    PolicyName: TypeAlias = str
else:
    PolicyName = Literal[tuple(POLICIES)]
"""The name of a policy. To pydantic, one of the table."""
