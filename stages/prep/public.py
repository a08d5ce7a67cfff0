"""Examples as rows that other tools read."""

from typing import Any

from ...schemas.rows import Example
from .base import PublicForm


def public_row(example: Example, form: PublicForm) -> dict[str, Any]:
    """One example in the columns that TRL and others read.

    Args:
        example: an example of a format whose `form` is `form`. Its values are shared, not copied.

    Returns:
        `{"prompt", "completion"}`, `{"prompt"}`, `{"messages"}` or `{"text"}`, by `form`; and `tools` for a
        conversation that has some.
    """
    row: dict[str, Any]
    if form == "text":
        return {"text": example.text}
    if form == "messages":
        assert isinstance(example.prompt, list)
        assert isinstance(example.completion, list)
        row = {"messages": example.prompt + example.completion}
    elif form == "prompt":
        row = {"prompt": example.prompt}
    else:
        row = {"prompt": example.prompt, "completion": example.completion}
    if example.tools is not None:
        row["tools"] = example.tools
    return row
