"""From the configuration's words to the options of a format."""

from ..schemas.config import SourceConfig
from ..stages.prep import (
    AppsOptions,
    MessagesOptions,
    Options,
    PromptCompletionOptions,
    TextOptions,
)


def format_options(source: SourceConfig, *, prompt_only: bool = False) -> Options:
    """The options that a source's format is built from.

    Raises:
        ConfigError: a renamed key cannot be one.
    """
    keys = source.keys
    if source.format == "apps":
        return AppsOptions(
            style=source.apps.style,
            max_solutions=source.apps.max_solutions,
            dedupe=source.apps.dedupe,
            difficulties=source.apps.difficulties,
            prompt_only=prompt_only,
        )
    if source.format == "prompt_completion":
        return PromptCompletionOptions(
            prompt_key=keys.get("prompt", "prompt"),
            completion_key=keys.get("completion", "completion"),
            tools_key=keys.get("tools", "tools"),
            prompt_only=prompt_only,
        )
    if source.format == "messages":
        return MessagesOptions(messages_key=keys.get("messages", "messages"), tools_key=keys.get("tools", "tools"))
    return TextOptions(text_key=keys.get("text", "text"))


def needs_template(source: SourceConfig) -> bool:
    """Whether a source's rows cannot be rendered without a chat template."""
    return source.format == "messages" or (source.format == "apps" and source.apps.style == "chat")


def is_plain(source: SourceConfig) -> bool:
    """Whether a source's rows are never conversations."""
    return source.format == "text" or (source.format == "apps" and source.apps.style == "classic")
