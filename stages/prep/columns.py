"""The columns that formats read: what a column is, those that all conversations have, and weights.

Other tools have columns of the same names that mean something else, or that decide what is trained. What cannot be
honoured is *refused*: to leave such a column out unsaid would train what somebody had excluded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...schemas.errors import RowRejectedError

LEAST_WEIGHT = 1e-6
MOST_WEIGHT = 1e6
"""The largest weight; LEAST_WEIGHT is the smallest that is not 0. So products of three weights stay within float32."""


def is_filled(value: Any) -> bool:
    """Whether a value is not an empty text, list or object."""
    return value not in ("", [], {})


def is_boolean(value: Any) -> bool:
    """Whether a value is true or false, also as a word, as in a cell of CSV."""
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false"))


@dataclass(frozen=True)
class Column:
    """A column that a format reads. Its name is its field's in `Format.columns`, unless the user gives another.

    A column that is not required is not read if the user gave its name to another one.
    """

    type: Any
    """The type of its values, for msgspec."""
    required: bool = False
    nested: bool = False
    """Whether it holds messages or tools, which may not nest too deeply."""
    cell: str = ""
    """If a text in the column is read as JSON, as a cell of CSV is: what it should be, such as "a JSON list of
    objects". A blank text is null then. "": texts stay texts."""
    refused: tuple[str, str] | None = None
    """Reason and detail of the rejection of a row with a value that cannot be used; None if every value can be."""
    refuses: Callable[[Any], bool] = is_filled
    """For a column with `refused`: whether a value that is not null cannot be used. By default, none but an empty one
    can be."""

    def require_usable(self, value: Any, where: str) -> None:
        """Refuse a value if the column says that it cannot be used.

        Args:
            value: not None.
            where: the column, for the message.

        Raises:
            RowRejectedError: with the column's reason and detail.
        """
        if self.refused is not None and self.refuses(value):
            reason, detail = self.refused
            raise RowRejectedError(reason, f"{where} is not empty: {detail}")


Columns: TypeAlias = Mapping[str, Column]
"""The columns of a format, by field."""

# Columns that all conversations have

OBJECTS = "a JSON list of objects"
KWARGS = "chat_template_kwargs"
"""The column of variables that a row hands to the chat template, as in TRL."""
DOCUMENTS = "documents"
"""The column of documents that a row hands to the chat template."""
SYSTEM: Columns = {name: Column(str | None) for name in ("system", "system_prompt")}
"""The columns whose text opens a conversation as its system message."""
TEMPLATE_INPUTS: Columns = {
    KWARGS: Column(dict[str, Any] | None, nested=True, cell="a JSON object"),
    DOCUMENTS: Column(list[dict[str, Any]] | None, nested=True, cell=OBJECTS),
}
"""The columns of variables and documents for the chat template."""
MEDIA: Columns = {
    name: Column(Any, refused=("not_text", "only text can be packed; remove the column if the text needs none"))
    for name in ("image", "images", "audio", "audios", "video", "videos")
}
"""Columns that hold images, sounds or videos. A row that has some is rejected."""
# Details of rejections, which follow "`label` is not empty: ".
_KTO = "true and false are for KTO, and are not pairs or examples here; take the good ones, or remove the column"
_TRAINED = "it is not read; give `train: false` to each message that is not trained"
CHAT_COLUMNS: Columns = {
    "tools": Column(list[dict[str, Any]] | None, nested=True, cell=OBJECTS),
    **SYSTEM,
    # OpenAI's name before `tools`, whose entries lack the `function` around them.
    "functions": Column(Any, refused=("wrong_type", "it is not read; give `tools`, or keys: {tools: functions}")),
    **MEDIA,
    **TEMPLATE_INPUTS,
    # `label` holds a class in many data sets, which trains nothing: only true and false look like KTO's.
    **{name: Column(Any, refused=("unusable_column", _KTO), refuses=is_boolean) for name in ("label", "kto_tag")},
    "loss_mask": Column(Any, refused=("unusable_column", _TRAINED)),
    "train": Column(Any, refused=("unusable_column", _TRAINED), refuses=lambda value: value is not True),
}
"""What every conversational format reads beside its own columns, or refuses because it cannot be honoured."""

# What a row hands to the chat template

RESERVED = frozenset(
    {"messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}
    | {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"}
    | {"return_assistant_tokens_mask", "processor_kwargs", "self"}
)
"""Arguments of `apply_chat_template` that are not variables of a template. A row may not give them as such."""


def template_inputs(row: Any, keys: Mapping[str, str]) -> dict[str, Any]:
    """The variables and documents that a row hands to the chat template, as `variables` and `documents` of its
    examples. What the row lacks is left out: most rows give {}. A variable that is null counts as missing.

    Args:
        row: as `Format.decode` returns it.
        keys: the name of each column that is read, by field.

    Raises:
        RowRejectedError: `unusable_column`, for a variable that only a configuration can set, or documents in two
            places that differ; `wrong_type`.
    """
    kwargs = getattr(row, KWARGS) if KWARGS in keys else None
    documents = getattr(row, DOCUMENTS) if DOCUMENTS in keys else None
    # A column of Arrow has every variable that any row has, so most are null in most rows.
    variables = {name: value for name, value in (kwargs or {}).items() if value is not None}
    reserved_names = RESERVED & variables.keys()
    if reserved_names:
        detail = "a row cannot decide it; remove it, or give `tools` a column of their own"
        raise RowRejectedError("unusable_column", f"`{keys[KWARGS]}.{min(reserved_names)}` is not read: {detail}")
    # TRL passes `chat_template_kwargs` on as they are, so rows made for it have their documents among them.
    documents_of_kwargs = variables.pop(DOCUMENTS, None)
    if documents_of_kwargs and documents and documents_of_kwargs != documents:
        raise RowRejectedError("unusable_column", f"`{keys[KWARGS]}` has other documents than `{keys[DOCUMENTS]}`")
    if documents_of_kwargs and not _is_list_of_objects(documents_of_kwargs):
        raise RowRejectedError("wrong_type", f"`{keys[KWARGS]}.{DOCUMENTS}` is not a list of objects")
    fields: dict[str, Any] = {}
    if variables:
        fields["variables"] = variables
    if documents or documents_of_kwargs:
        fields["documents"] = documents or documents_of_kwargs
    return fields


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


# Columns of any format

NAMED_COLUMNS: Columns = {"weight": Column(Any, required=True), "group": Column(str | int | None, required=True)}
"""The columns of a row's loss weight and of its group, which all its examples get. They are in no format's table, and
are read only if the user names them: a column `weight` may as well be a person's weight in kilograms.
"""


def check_weight(value: Any, where: str) -> float:
    """The loss weight of a message or an example as a number; 1 for null.

    Raises:
        RowRejectedError: `weight`, for anything but 0 and numbers within the limits.
    """
    if value is None:
        return 1.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (value == 0 or LEAST_WEIGHT <= value <= MOST_WEIGHT):  # false for NaN
        return float(value)
    rule = "a weight is 0 (not trained), or a number"
    raise RowRejectedError(
        "weight", f"`{where}` is {repr(value)[:40]}: {rule} from {LEAST_WEIGHT:g} to {MOST_WEIGHT:,.0f}"
    )
