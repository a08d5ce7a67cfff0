"""The formats of rows by name, and the columns of each that can be renamed."""

AUTO = "auto"
PYTHON = "python:"
"""Prefix of a user's own reader: `python:module:function`."""

FORMAT_KEYS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "tools", "weight"),
    "sharegpt": ("conversations", "system", "tools", "weight"),
    "alpaca": ("instruction", "input", "output", "history", "system", "weight"),
    "prompt_completion": ("prompt", "completion", "tools", "weight"),
    "preference": ("prompt", "chosen", "rejected", "tools"),
    "tokenized": ("ids", "labels", "mask", "lengths", "weight"),
    "text": ("text", "weight"),
    "apps": ("weight",),
}
"""Keys that name columns, for each format. Only `weight` has no default name: without it, all weights are 1."""


def default_name(format: str) -> str:
    """The name of a source without one: its format, or the function of the user's own reader."""
    return "data" if format == AUTO else format.rsplit(":", 1)[-1].strip("_") or "data"


STYLED = ("alpaca", "prompt_completion", "preference")
"""Formats whose rows can be plain texts with a choice of style."""
CONVERSATIONAL = ("messages", "sharegpt", "alpaca", "prompt_completion")
"""Formats whose rows can be conversations of several turns."""
