"""A chat template rendered by jinja2: the reference for every faster path.

The rules around the rendering (which keys are dropped, which are aliased, what a template may touch) are those of
transformers 5's `apply_chat_template(..., tokenize=False)`, so that the text is identical. Two things differ on
purpose, so that the text depends only on the data and the configuration: the date is pinned, and a template cannot draw
random numbers.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jinja2

from ...schemas.errors import PacktrainError, RowRejectedError, TemplateError
from ...schemas.rows import Message, Messages
from .environment import Sandbox, compile_template, limited, make_environment, require_size

REASON = "template_error"
"""The ledger's reason for rows that the template refused."""
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_DETAIL_CHARS = 500


class ChatTemplate:
    """A compiled chat template with its variables.

    It is pickled as its four arguments and compiled again in the other process (a few milliseconds).

    Args:
        source: the jinja2 text.
        variables: variables that the template can use: the tokenizer's `special_tokens_map`, and switches such as
            `enable_thinking`.
        name: its name in errors: the file or tokenizer that it came from.
        date: an ISO date (`2024-07-26`) that `strftime_now` formats, or None.

    Raises:
        TemplateError: the source does not compile, the date is not an ISO date, or a variable's name is reserved.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        name: str,
        date: str | None = None,
    ) -> None:
        self.source = source
        self.variables: dict[str, Any] = {str(key): plain(value) for key, value in variables.items()}
        self.name = name
        self.date = date
        for key in _RESERVED:
            if key in self.variables:
                raise TemplateError(
                    f"chat template '{name}': the variable '{key}' would hide a name that every template gets; "
                    "give it another name"
                )
        try:
            made = make_environment(Sandbox, name, date)
            self._template = compile_template(made, source, name)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"chat template '{name}' does not compile: {error.message} (line {error.lineno}); "
                "fix the template, or name another one"
            ) from error
        except PacktrainError:
            raise
        except Exception as error:  # jinja2 leaves some mistakes to Python's compiler
            raise TemplateError(
                f"chat template '{name}' does not compile: {error}; fix the template, or name another one"
            ) from error

    def __reduce__(self) -> tuple[type["ChatTemplate"], tuple[Any, ...]]:
        return type(self), (self.source, self.variables, self.name, self.date)

    @property
    def stopped(self) -> str:
        """What to say if a rendering is stopped."""
        return f"chat template '{self.name}' was stopped"

    @property
    def marks_generation(self) -> bool:
        """Whether the source marks assistant text with `{% generation %}`."""
        return _GENERATION.search(self.source) is not None

    def render(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation.

        Raises:
            RowRejectedError: there is no message, or the template (or the sandbox) refused this conversation.
            TemplateError: the template uses the date and none is pinned, or uses a random number.
        """
        if not messages:
            raise self.rejected("there is no message to render")
        chat = [self._message(message) for message in messages]
        if tools is not None and not all(isinstance(tool, dict) for tool in tools):
            raise self.rejected("every tool must be a JSON object")
        inputs = self.inputs(chat, plain(tools), add_generation_prompt=add_generation_prompt)
        return self.guarded(lambda: self._template.render(inputs))

    def guarded(self, render: Callable[[], str]) -> str:
        """Call `render` within the limits, and turn its errors into errors of this template.

        Raises:
            RowRejectedError, TemplateError: as `render`.
        """
        try:
            text = limited(render, self.stopped)
            require_size(len(text), self.stopped)
            if not text.isascii():
                text.encode()
            return text
        except PacktrainError:
            raise
        except UnicodeEncodeError as error:
            raise self.rejected("it makes half a character (a surrogate), which no file can hold") from error
        except Exception as error:
            message = str(error) or "no message"
            raise self.rejected(f"{type(error).__name__}: {message[:_DETAIL_CHARS]}") from error

    def inputs(self, chat: Messages, tools: Any, *, add_generation_prompt: bool) -> dict[str, Any]:
        """All variables that the template gets."""
        return {
            "messages": chat,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self.variables,
        }

    def _message(self, message: Any) -> Message:
        if not isinstance(message, Mapping):
            raise self.rejected(f"a message must be a JSON object, not {type(message).__name__}")
        return with_reasoning(plain({key: value for key, value in message.items() if value is not None}))

    def rejected(self, detail: str) -> RowRejectedError:
        """The error for a row that the template refuses."""
        return RowRejectedError(REASON, f"chat template '{self.name}': {detail}")


def with_reasoning(message: Message) -> Message:
    """Return a message with its reasoning under every key that templates use, as in transformers."""
    for key in REASONING_KEYS:
        reasoning = message.get(key)
        if reasoning is not None:
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def plain(value: Any) -> Any:
    """Return a copy made only of JSON types, so that a template cannot reach methods of other objects.

    Anything else becomes a placeholder that names its type, such as `<Image>`.
    """
    kind = type(value)
    if value is None or kind is str or kind is int or kind is float or kind is bool:
        return value
    for base in (str, int, float):  # subclasses, including enums, become the plain value
        if isinstance(value, base):
            return base.__str__(value) if base is str else getattr(base, f"__{base.__name__}__")(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return f"<{kind.__name__}>"
