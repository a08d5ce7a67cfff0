"""The formats of rows by name, and the columns of each that may be called otherwise."""

AUTO = "auto"
PYTHON = "python:"
"""What a format begins with that is a person's own reader: `python:module:function`."""

FORMAT_KEYS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "tools"),
    "sharegpt": ("conversations", "system", "tools"),
    "alpaca": ("instruction", "input", "output", "history", "system"),
    "prompt_completion": ("prompt", "completion", "tools"),
    "preference": ("prompt", "chosen", "rejected", "tools"),
    "tokenized": ("ids", "labels", "mask"),
    "text": ("text",),
    "apps": (),
}
"""By format, the keys that rename its columns."""


def default_name(format: str) -> str:
    """What a source is called where only its format was given: `text`, or the function of a person's own reader."""
    return "data" if format == AUTO else format.rsplit(":", 1)[-1].strip("_") or "data"


STYLED = ("alpaca", "prompt_completion", "preference")
"""Formats whose rows can be texts that are rendered in one of two styles."""
CONVERSATIONAL = ("messages", "sharegpt", "alpaca", "prompt_completion")
"""Formats whose rows can be conversations of several turns."""
