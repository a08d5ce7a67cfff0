"""Examples as rows for other tools."""

from typing import Any

import numpy as np

from ...schemas.rows import IGNORE_INDEX, Example
from .base import PublicForm


def public_row(example: Example, form: PublicForm) -> dict[str, Any]:
    """One example in the columns that TRL and other tools read.

    Args:
        example: an example of a format whose `form` is `form`. Its values are shared, not copied.

    Returns:
        `{"prompt", "completion"}`, `{"prompt"}`, `{"messages"}`, `{"text"}`, `{"prompt", "chosen", "rejected"}` or
        `{"input_ids", "labels"}`, depending on `form`, or on the example if `form` is `any`; plus `tools` if the
        conversation has some.
    """
    row: dict[str, Any]
    if form == "any":
        form = _form_of(example)
    if form == "text":
        return {"text": example.text}
    if form == "tokenized":
        assert example.ids is not None
        ids = np.asarray(example.ids, np.int64)
        labels = ids if example.trained is None else np.where(example.trained, ids, IGNORE_INDEX)
        return {"input_ids": ids.tolist(), "labels": labels.tolist()}
    if form == "messages":
        assert isinstance(example.prompt, list)
        assert isinstance(example.completion, list)
        row = {"messages": example.prompt + example.completion}
    elif form == "prompt":
        row = {"prompt": example.prompt}
    elif form == "preference":
        row = {"prompt": example.prompt, "chosen": example.completion, "rejected": example.rejected}
    else:
        row = {"prompt": example.prompt, "completion": example.completion}
    if example.tools is not None:
        row["tools"] = example.tools
    return row


def _form_of(example: Example) -> PublicForm:
    if example.ids is not None:
        return "tokenized"
    if example.text is not None:
        return "text"
    if example.rejected is not None:
        return "preference"
    # Without a completion, the two lists could not be read back.
    return "messages" if example.completion == [] else "prompt_completion"
