"""The formats of rows by name, and the columns of each that can be renamed."""

AUTO = "auto"
PYTHON = "python:"
"""Prefix of a user's own reader: `python:module:function`."""

FORMAT_KEYS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "tools"),
    "sharegpt": ("conversations", "system", "tools"),
    "alpaca": ("instruction", "input", "output", "history", "system"),
    "prompt_completion": ("prompt", "completion", "tools"),
    "preference": ("prompt", "chosen", "rejected", "tools"),
    "tokenized": ("ids", "labels", "mask", "lengths"),
    "text": ("text",),
    "apps": (),
}
"""Keys that rename columns, for each format."""


def default_name(format: str) -> str:
    """The name of a source without one: its format, or the function of the user's own reader."""
    return "data" if format == AUTO else format.rsplit(":", 1)[-1].strip("_") or "data"


STYLED = ("alpaca", "prompt_completion", "preference")
"""Formats whose rows can be plain texts with a choice of style."""
CONVERSATIONAL = ("messages", "sharegpt", "alpaca", "prompt_completion")
"""Formats whose rows can be conversations of several turns."""
