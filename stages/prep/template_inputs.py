"""What a row hands to the chat template beside messages and tools."""

from collections.abc import Mapping
from typing import Any

from ...schemas.errors import RowRejectedError

KWARGS = "chat_template_kwargs"
"""The column of variables that a row hands to the chat template, as in TRL."""
DOCUMENTS = "documents"
"""The column of documents that it hands over."""
RESERVED = frozenset(
    {"messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}
    | {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"}
    | {"return_assistant_tokens_mask", "processor_kwargs", "self"}
)
"""Arguments of `apply_chat_template` that are no variables of templates."""


def template_inputs(row: Any, keys: Mapping[str, str]) -> dict[str, Any]:
    """The variables and documents that a row hands to the chat template, as fields of its examples; those that it lacks
    are left out. A variable that is null counts as missing, as in columns of Arrow.

    Raises:
        RowRejectedError: `unusable_column`, for what only a configuration can say, or what is said twice.
    """
    kwargs = getattr(row, KWARGS) if KWARGS in keys else None
    documents = (getattr(row, DOCUMENTS) if DOCUMENTS in keys else None) or None
    variables = {name: value for name, value in (kwargs or {}).items() if value is not None}
    if RESERVED & variables.keys():
        name = min(RESERVED & variables.keys())
        detail = "a row cannot decide it; remove it, or give `tools` a column of their own"
        raise RowRejectedError("unusable_column", f"`{keys[KWARGS]}.{name}` is not read: {detail}")
    # They may stand among the variables, too.
    documents_of_kwargs = variables.pop(DOCUMENTS, None)
    if documents_of_kwargs and documents and documents_of_kwargs != documents:
        raise RowRejectedError("unusable_column", f"`{keys[KWARGS]}` has other documents than `{keys[DOCUMENTS]}`")
    if documents_of_kwargs and not (
        isinstance(documents_of_kwargs, list) and all(isinstance(document, dict) for document in documents_of_kwargs)
    ):
        raise RowRejectedError("wrong_type", f"`{keys[KWARGS]}.{DOCUMENTS}` is not a list of objects")
    fields = {"variables": variables or None, "documents": documents or documents_of_kwargs or None}
    return {field: value for field, value in fields.items() if value is not None}
