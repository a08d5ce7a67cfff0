"""Turns the configuration of a source into a format and its options."""

from dataclasses import dataclass
from typing import Any

import msgspec

from ...schemas.config.config import SourceConfig
from ...stages.prep import (
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


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """How the rows of one source are read."""

    name: str
    """Name of the format in `stages.prep.FORMATS`."""
    options: Options
    said: str | None = None
    """What was detected and why, if the configuration left it open."""
    joints: str | None = None
    """A warning that prompts run into their completions, if most do."""

    @property
    def notes(self) -> list[str]:
        """Notes for the user."""
        return [note for note in (self.said, self.joints) if note is not None]

    def payload(self) -> dict[str, Any]:
        """The format in the plan."""
        options: dict[str, Any] = msgspec.to_builtins(self.options.payload())
        return {"format": self.name, "options": options}


def format_options(source: SourceConfig, *, prompt_only: bool = False) -> Options:
    """The options of a source's format, after `formats` has resolved `auto` and readers.

    Raises:
        ConfigError: a renamed key is invalid.
    """
    keys = {f"{key}_key": name for key, name in source.keys.items()}
    per_turn = source.expand == "per_turn"
    style = source.style or ("chat" if source.format == "alpaca" else "plain")
    match source.format:
        case "apps":
            return AppsOptions(
                **keys,
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
    """Whether rows need a chat template."""
    return isinstance(options, MessagesOptions | ShareGPTOptions) or getattr(options, "style", "plain") == "chat"


def is_plain(options: Options) -> bool:
    """Whether rows are never conversations."""
    if isinstance(options, AppsOptions | AlpacaOptions):
        return options.style != "chat"
    return isinstance(options, TextOptions | TokenizedOptions)
