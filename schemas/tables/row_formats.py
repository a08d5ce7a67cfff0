"""The formats of source rows: what they are called, which columns can be renamed, which options of a source they take.

How the rows of each are read is in a file of its name in `stages/prep/`.
"""

from dataclasses import dataclass

OPTIONS = ("expand", "mask", "max_solutions", "style")
"""Keys of a source that only some formats take."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """What a source of this format can say."""

    name: str
    sentence: str
    """What its rows are, for the configuration's key."""
    keys: tuple[str, ...]
    """Columns that `keys` can rename. `weight` and `group` have no default name: if `keys` does not name them, all
    weights are 1, and a row has a group only if its format gives it one."""
    options: tuple[str, ...] = ()
    """Those of `OPTIONS` that it takes: `expand` if its rows can be conversations of several turns, `mask` if masks
    train different tokens of them, `style` if its plain texts can be rendered in several ways."""


_CHAT = ("tools", "chat_template_kwargs", "documents")

ROW_FORMATS = {
    row_format.name: row_format
    for row_format in (
        RowFormat("messages", "OpenAI's", ("messages", "system", *_CHAT, "weight", "group"), ("expand", "mask")),
        RowFormat(
            "sharegpt",
            "turns of `from` and `value`",
            ("conversations", "system", *_CHAT, "weight", "group"),
            ("expand", "mask"),
        ),
        RowFormat(
            "alpaca",
            "instruction, input, output",
            ("instruction", "input", "output", "history", "system", *_CHAT, "weight", "group"),
            ("expand", "mask"),
        ),
        RowFormat(
            "prompt_completion",
            "both texts or both messages",
            ("prompt", "completion", "system", *_CHAT, "weight", "group"),
            ("expand", "mask", "style"),
        ),
        RowFormat(
            "preference",
            "prompt, chosen, rejected, in a separate run",
            ("prompt", "chosen", "rejected", "system", *_CHAT, "group"),
            ("mask", "style"),
        ),
        RowFormat("tokenized", "`input_ids` with labels or masks", ("input_ids", "labels", "weight", "group")),
        RowFormat("text", "one text", ("text", "weight", "group")),
        RowFormat("apps", "problems of APPS with their solutions", ("weight", "group"), ("mask", "max_solutions")),
    )
}
"""Every format by its name, in the order in which they are explained."""


def formats_with(option: str) -> tuple[str, ...]:
    """The formats that take an option."""
    return tuple(name for name, row_format in ROW_FORMATS.items() if option in row_format.options)
