"""From the configuration's words to the options of a format."""

from ..schemas.config import SourceConfig
from ..stages.prep import (
    AlpacaOptions,
    AppsOptions,
    MessagesOptions,
    Options,
    PreferenceOptions,
    PromptCompletionOptions,
    ShareGPTOptions,
    TextOptions,
    TokenizedOptions,
)


def format_options(source: SourceConfig, *, prompt_only: bool = False) -> Options:
    """The options that a source's format is built from. `formats` resolves `auto` and readers before.

    Raises:
        ConfigError: a renamed key cannot be one.
    """
    keys = {f"{key}_key": name for key, name in source.keys.items()}
    per_turn = source.expand == "per_turn"
    style = source.style or ("chat" if source.format == "alpaca" else "plain")
    match source.format:
        case "apps":
            return AppsOptions(
                style=source.apps.style,
                max_solutions=source.apps.max_solutions,
                dedupe=source.apps.dedupe,
                difficulties=source.apps.difficulties,
                prompt_only=prompt_only,
            )
        case "prompt_completion":
            return PromptCompletionOptions(**keys, style=style, prompt_only=prompt_only, per_turn=per_turn)
        case "messages":
            return MessagesOptions(**keys, per_turn=per_turn)
        case "sharegpt":
            return ShareGPTOptions(**keys, per_turn=per_turn)
        case "alpaca":
            return AlpacaOptions(**keys, style=style, per_turn=per_turn)
        case "preference":
            return PreferenceOptions(**keys, style=style)
        case "tokenized":
            return TokenizedOptions(**keys)
        case "text":
            return TextOptions(**keys)
    raise AssertionError(f"format {source.format} was not resolved")


def needs_template(options: Options) -> bool:
    """Whether rows cannot be rendered without a chat template."""
    return isinstance(options, MessagesOptions | ShareGPTOptions) or getattr(options, "style", "plain") == "chat"


def is_plain(options: Options) -> bool:
    """Whether rows are never conversations."""
    if isinstance(options, AppsOptions | AlpacaOptions):
        return options.style != "chat"
    return isinstance(options, TextOptions | TokenizedOptions)
