"""The part of the configuration that says which tokens are trained, for a run and for one of its sources."""

from typing import Any, Literal

from .section import ConfigModel

MaskPolicy = Literal["completion", "assistant", "last_assistant", "all"]
Thoughts = Literal["train", "mask", "last"]
ToolCalls = Literal["train", "mask"]
Stop = Literal["turn", "auto"]


class MaskConfig(ConfigModel):
    """Which tokens are trained. A conversation whose turns cannot be located with certainty, if the mask needs them, is
    left out, and listed in rejects.jsonl; only `completion` and `all` need none, without `train_end: false`, `thoughts`
    and `tool_calls`."""

    policy: MaskPolicy = "completion"
    """`completion`: everything after the prompt, which is everything before a last assistant message. `assistant`:
    every assistant turn, with tool calls, without headers. `last_assistant`: the last of these turns. `all`: every
    token. A plain text is trained as a whole; of a plain prompt and completion, only the completion is trained.
    Messages with `train: false` or a `weight` of 0 are never trained; other weights say how much they count."""
    train_end: bool = True
    """Train the end-of-turn token with its turn. `all` always does."""
    thoughts: Thoughts = "train"
    """Thoughts of the assistant, from a field such as `reasoning_content` or between tags such as `<think>` and
    `</think>`. `train`: like the rest of their turn. `mask`: never trained, but the tag that closes them is, as part of
    the answer. `last`: only those of the last assistant turn are trained."""
    tool_calls: ToolCalls = "train"
    """Tool calls of the assistant, with what the template writes around them. `mask`: never trained, but the
    end-of-turn token after them is."""
    stop: Stop = "turn"
    """Some templates do not end turns: the header of the next message does, such as `<|user|>`. `auto` trains its first
    token with the turn before it. `turn` does not."""


class SourceMaskConfig(ConfigModel):
    """Which tokens of one source are trained. A key that is null is as in the run's `mask`."""

    policy: MaskPolicy | None = None
    """Which turns are trained."""
    train_end: bool | None = None
    """Whether the end-of-turn token is trained with its turn."""
    thoughts: Thoughts | None = None
    """Which thoughts of the assistant are trained."""
    tool_calls: ToolCalls | None = None
    """Whether tool calls of the assistant are trained."""
    stop: Stop | None = None
    """Whether a stop token in the next message's header is trained."""


def policy_alone(value: Any) -> Any:
    """Take `mask: assistant` as `mask: {policy: assistant}`; other values stay unchanged."""
    return {"policy": value} if isinstance(value, str) else value
