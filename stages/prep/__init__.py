"""Turns source rows into training examples. Each kind of row has its own format."""

from typing import Any

from ...schemas.errors import ConfigError
from .alpaca import AlpacaFormat, AlpacaOptions
from .apps import AppsFormat, AppsOptions
from .base import Format, Options, PreparedBlock, PublicForm
from .messages import MessagesFormat, MessagesOptions
from .preference import PreferenceFormat, PreferenceOptions
from .prompt_completion import PromptCompletionFormat, PromptCompletionOptions
from .public import public_row
from .reader import ReaderFormat, ReaderOptions
from .sharegpt import ShareGPTFormat, ShareGPTOptions
from .text import TextFormat, TextOptions
from .tokenized import TokenizedFormat, TokenizedOptions

__all__ = [
    "FORMATS",
    "AlpacaFormat",
    "AlpacaOptions",
    "AppsFormat",
    "AppsOptions",
    "Format",
    "MessagesFormat",
    "MessagesOptions",
    "Options",
    "PreferenceFormat",
    "PreferenceOptions",
    "PreparedBlock",
    "PromptCompletionFormat",
    "PromptCompletionOptions",
    "PublicForm",
    "ReaderFormat",
    "ReaderOptions",
    "ShareGPTFormat",
    "ShareGPTOptions",
    "TextFormat",
    "TextOptions",
    "TokenizedFormat",
    "TokenizedOptions",
    "make_format",
    "public_row",
]

FORMATS: dict[str, type[Format[Any, Any]]] = {
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


def make_format(name: str, options: Options | None = None) -> Format[Any, Any]:
    """The format `name`, with default options unless given.

    Raises:
        ConfigError: there is no such format, or the options belong to another one.
    """
    if name not in FORMATS:
        raise ConfigError(f"no prep format is called {name!r}; choose from {', '.join(FORMATS)}")
    format_type = FORMATS[name]
    options = format_type.options_type() if options is None else options
    if type(options) is not format_type.options_type:
        wanted = format_type.options_type.__name__
        raise ConfigError(f"prep format {name!r} takes {wanted}, got {type(options).__name__}")
    # Every format's constructor takes only its options; the base class's takes more.
    return format_type(options)  # type: ignore[call-arg]
