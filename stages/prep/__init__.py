"""Turns source rows into training examples. Each kind of row has its own format: a table of columns and a function."""

from .alpaca import AlpacaFormat
from .apps import AppsFormat
from .base import Format, Options, PreparedBlock, ReaderCode, RejectedRow
from .messages import MessagesFormat
from .preference import PreferenceFormat
from .prompt_completion import PromptCompletionFormat
from .reader import ReaderFormat
from .sharegpt import ShareGPTFormat
from .text_and_ids import TextFormat, TokenizedFormat

__all__ = ["FORMATS", "Format", "Options", "PreparedBlock", "ReaderCode", "RejectedRow", "make_format"]

FORMATS: dict[str, type[Format]] = {
    format_type.name: format_type
    for format_type in (
        AppsFormat,
        PromptCompletionFormat,
        MessagesFormat,
        ShareGPTFormat,
        AlpacaFormat,
        PreferenceFormat,
        TokenizedFormat,
        TextFormat,
        ReaderFormat,
    )
}
"""Every format by its name."""


def make_format(name: str, options: Options | None = None) -> Format:
    """The format of a name. Without options, it has the default ones.

    Raises:
        ConfigError: a key cannot name a column.
    """
    return FORMATS[name](options)
