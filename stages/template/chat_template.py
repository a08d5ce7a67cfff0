"""A chat template rendered by jinja2: the reference for every faster path.

The rules around the rendering (which keys are dropped, which are aliased, what a template may touch) are those of
transformers 5's `apply_chat_template(..., tokenize=False)`, so that the text is identical. Three things differ on
purpose, so that the text depends only on the data and the configuration: the date is pinned, and a template can neither
draw random numbers nor write an object's address in memory. A fourth, so that calls are what a server would render: see
`call_arguments`.
"""

import re
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import jinja2

from ...schemas.errors import PacktrainError, RowRejectedError, TemplateError
from ...schemas.rows import Message, Messages
from .call_arguments import CallArguments, learn_call_arguments, with_call_arguments
from .sandbox import Sandbox, run_limited, stopped_error

MAX_CHARACTERS = 1 << 28
"""Maximum number of characters of a rendering."""
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message under which rows of different origins have its reasoning."""
_GENERATION_BLOCK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_RESERVED_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_ADDRESS_PREFIX = " at 0x"
_ADDRESS_PATTERN = re.compile(f"{_ADDRESS_PREFIX}[0-9a-f]+(?=>)")
"""Matches the end of the default text of a Python object: `<generator object at 0x7f...>`."""
_DETAIL_CHARS = 500
"""How much of an error's own message a rejection quotes."""


class ChatTemplate:
    """A compiled chat template with its variables.

    Args:
        source: the jinja2 text.
        variables: variables that the template can use: the tokenizer's `special_tokens_map`, and switches such as
            `enable_thinking`.
        name: its name in errors: the file or tokenizer that it came from.
        date: an ISO date (`2024-07-26`) that `strftime_now` formats, or None.
        call_arguments: the form in which the template gets arguments of tool calls. None: the one that it takes.

    Raises:
        TemplateError: the source does not compile, the date is not an ISO date, or a variable's name is reserved.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        name: str,
        date: str | None = None,
        call_arguments: CallArguments | None = "as_given",
    ) -> None:
        self.source = source
        self.variables: dict[str, Any] = {str(key): plain(value) for key, value in variables.items()}
        self.name = name
        self.date = date
        hiding = _RESERVED_NAMES & self.variables.keys()
        if hiding:
            raise TemplateError(
                f"chat template '{name}': the variable '{min(hiding)}' would hide a name that every template gets; "
                "give it another name"
            )
        try:
            self._template = Sandbox(name, date).compiled(source)
        except PacktrainError:
            raise
        except Exception as error:
            # Not only a TemplateSyntaxError: jinja2 leaves some mistakes to Python's compiler.
            description = _describe_compile_error(error)
            raise TemplateError(
                f"chat template '{name}' does not compile: {description}; fix the template, or name another one"
            ) from error
        self.documents: list[dict[str, Any]] | None = None
        """The documents of a row, if `for_row` was given some."""
        self.call_arguments: CallArguments = "as_given"
        """The form of the arguments of tool calls."""
        # Learning renders with this template, and chooses the form of each call itself: until then, as given.
        self.call_arguments = call_arguments or learn_call_arguments(self.render)

    def for_row(
        self, variables: Mapping[str, Any] | None = None, documents: list[dict[str, Any]] | None = None
    ) -> "ChatTemplate":
        """The same template with a row's documents and variables. Of two variables of one name, the row's counts."""
        if not variables and not documents:
            return self
        # A shallow copy: it shares the compiled template, which is slow to make.
        template = copy(self)
        template.variables = self.variables | {key: plain(value) for key, value in (variables or {}).items()}
        template.documents = plain(documents)
        return template

    def with_call_arguments(self, messages: Messages) -> Messages:
        """(M,) messages with the arguments of tool calls in the form that the template takes."""
        return with_call_arguments(messages, self.call_arguments)

    @property
    def marks_generation(self) -> bool:
        """Whether the source marks assistant text with `{% generation %}`."""
        return _GENERATION_BLOCK.search(self.source) is not None

    def render(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation.

        Raises:
            RowRejectedError: the template (or the sandbox) refused this conversation.
            TemplateError: the template uses the date and none is pinned, or uses a random number or an address.
        """
        # As in transformers: keys without a value are left out, so that `is defined` says whether a message has one.
        chat = [
            with_reasoning(plain({key: value for key, value in message.items() if value is not None}))
            for message in self.with_call_arguments(messages)
        ]
        return self.guarded(self._template.render, chat, tools, add_generation_prompt=add_generation_prompt)

    def guarded(
        self, render: Callable[[dict[str, Any]], str], chat: Messages, tools: Any, *, add_generation_prompt: bool
    ) -> str:
        """The text that a function renders. It is called within the limits of memory and time, and its errors become
        errors of this template.

        Args:
            render: gets all variables of the template, by name.
            chat: the messages, as the template sees them.
            tools: the row's tool schemas, or None.

        Raises:
            RowRejectedError, TemplateError: for the same reasons as the method `render`.
        """
        inputs = {
            "messages": chat,
            "tools": plain(tools),
            "documents": self.documents,
            "add_generation_prompt": add_generation_prompt,
            **self.variables,
        }
        try:
            text = run_limited(lambda: render(inputs), self.name)
            if len(text) > MAX_CHARACTERS:
                raise stopped_error(self.name, f"it makes a text of more than {MAX_CHARACTERS >> 20} Mi characters")
            if not text.isascii():
                text.encode()  # raises for half of a surrogate pair
        except PacktrainError:
            raise
        except UnicodeEncodeError as error:
            raise self._rejected("it makes half a character (a surrogate), which no file can hold") from error
        except Exception as error:
            message = str(error) or "no message"
            raise self._rejected(f"{type(error).__name__}: {message[:_DETAIL_CHARS]}") from error
        # A quick look: few texts contain it, and the search with a pattern takes longer.
        if _ADDRESS_PREFIX in text:
            self._refuse_addresses(text, inputs)
        return text

    def _refuse_addresses(self, text: str, inputs: dict[str, Any]) -> None:
        """Raise TemplateError if a text has addresses of objects that neither the source nor the inputs contain."""
        source_and_inputs = f"{self.source}{inputs}"
        # As sets first: a log in a content may have thousands, and each search takes as long as the text.
        new_addresses = set(_ADDRESS_PATTERN.findall(text)).difference(_ADDRESS_PATTERN.findall(source_and_inputs))
        # What is left may still stand there as a part of something else, which the pattern does not match.
        if not all(address in source_and_inputs for address in new_addresses):
            raise TemplateError(
                f"the chat template '{self.name}' writes an object by its address in memory, so the same data "
                "would not give the same shards; after `map`, `select` and the like write `| list` or `| join`"
            )

    def _rejected(self, detail: str) -> RowRejectedError:
        return RowRejectedError("template_error", f"chat template '{self.name}': {detail}")


def _describe_compile_error(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{error.message} (line {error.lineno})"
    return str(error)


def with_reasoning(message: Message) -> Message:
    """Return a message with its reasoning under every key that templates use, as in transformers."""
    for key in REASONING_KEYS:
        reasoning = message.get(key)
        if reasoning is not None:
            # A `thinking` of the message itself stays: `**message` comes after it. `reasoning_content` is replaced.
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def plain(value: Any) -> Any:
    """Return a copy made only of JSON types, so that a template cannot reach methods of other objects.

    Anything else becomes a placeholder that names its type, such as `<date>`.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    # Subclasses, such as enums in a reader's rows, become the plain value. By the base's own method, such as
    # `str.__str__(value)` or `int.__int__(value)`, because that of the subclass may give anything.
    for base in (str, int, float):
        if isinstance(value, base):
            return getattr(base, f"__{base.__name__}__")(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple([plain(item) for item in value])
    return f"<{type(value).__name__}>"
