"""Renders a conversation so that every character knows the message it came from, in one pass.

Contents enter the template as `TrackedStr`: strings that behave normally and remember where they came from. So one
rendering gives the text and the origin of its words.
"""

import marshal
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ...schemas.rows import Message, Messages
from .assistant_turns import CALL, GENERATION, MESSAGE, REASONING, TOOLS, Word, code_of
from .chat_template import REASONING_KEYS, ChatTemplate, plain, with_reasoning
from .environment import Sandbox, compile_template, make_environment, tojson
from .tracked_str import TrackedStr, join, owned, owner_of, tracked, words_of

_DICT_NAMES = frozenset(dir(dict))


class OwnedDict(dict[Any, Any]):
    """A tool call, its function or its arguments: a dictionary that remembers its message."""

    __slots__ = ("_code",)  # hidden from templates by the sandbox

    def __init__(self, code: int) -> None:
        self._code = code


def _owner(value: Any) -> int | None:
    """The code of a value that came from one place; for several tool calls of a message, their common code."""
    if type(value) is OwnedDict:
        return value._code
    if type(value) is not list or not value or type(value[0]) is not OwnedDict:
        return owner_of(value)
    code = value[0]._code
    if all(type(item) is OwnedDict and item._code == code for item in value):
        return code
    return code_of(code >> MESSAGE, 0, CALL)


class TrackingEnvironment(Sandbox):
    """The sandbox with tracked strings: filters and joins keep where each character came from."""

    concat = staticmethod(join)
    blocks: int
    """Number of generation blocks that the current rendering ran."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.blocks = 0
        self.kept: dict[int, tuple[int, dict[str, TrackedStr]]] = {}
        """Tools that `Marker` keeps, by `id`: their code, and their JSON for each set of options."""

        def generation(text: str) -> str:
            self.blocks += 1
            block = (0, len(text), GENERATION)
            return tracked(text, (*words_of(text), block))

        self.generation = generation

    def keep(self, value: Any, code: int) -> None:
        """Remember a value that stays alive, so that its JSON is made once and tracked."""
        self.kept[id(value)] = (code, {})

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """See jinja2."""
        filters: dict[str, Any] = self.filters
        filters["tojson"] = self._tojson
        filters["join"] = _joined(filters["join"])
        return super().compile(*args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See jinja2, which finds the keys of dictionaries through exceptions, slowly."""
        if (type(obj) is dict or type(obj) is OwnedDict) and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def _tojson(self, value: Any, *args: Any, **kwargs: Any) -> str:
        kept = self.kept.get(id(value))
        if kept is not None:
            options = repr((args, kwargs))  # not as keys: 1 and 1.0 are equal, and lists cannot be keys
            code, texts = kept
            if options not in texts:
                texts[options] = owned(tojson(value, *args, **kwargs), code)
            return texts[options]
        text = tojson(value, *args, **kwargs)
        owner = _owner(value)
        return text if owner is None else owned(text, owner)


def _joined(inner: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        if attribute is None and not context.autoescape:
            value = value if isinstance(value, (list, tuple, str)) else list(value)
            if type(d) is str and isinstance(value, (list, tuple)) and any(type(item) is TrackedStr for item in value):
                texts = [item if isinstance(item, str) else str(item) for item in value]
                return join(texts, d)
        return inner(context, value, d, attribute)

    wrapper.jinja_pass_arg = inner.jinja_pass_arg  # type: ignore[attr-defined]
    return wrapper


_WORDS_KEYS = ("content", *REASONING_KEYS)
_REASONING = frozenset(REASONING_KEYS)
PART_KEYS = ("text", "refusal", *_WORDS_KEYS)
"""Keys that hold the words of a content part."""
CALL_KEYS = ("name", "arguments", "parameters", "input")
"""Keys that hold the words of a tool call."""
TOOL_KEYS = ("name", "description")
"""Keys of a tool whose words a template always writes if it writes the tool."""
_REASONING_TYPES = ("thinking", "reasoning")
_MAX_KEPT = 1024


class Marked(NamedTuple):
    """A rendering with its words."""

    text: str
    words: list[Word]
    """Words of the messages, sorted; words of tools are not among them."""
    blocks: int
    """Number of generation blocks that ran; it must equal the number of words that belong to blocks."""
    tools: Collection[int] = ()
    """Codes of the tools with words in the text."""


class Marker:
    """Renders with `TrackedStr` contents.

    Args:
        template: the chat template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self._environment = make_environment(TrackingEnvironment, template.name, template.date)
        self._compiled = compile_template(self._environment, template.source)
        self._tools: dict[bytes, list[dict[str, Any]]] = {}

    def render(
        self, chat: Messages, tools: list[dict[str, Any]] | None, *, add_generation_prompt: bool = False
    ) -> Marked:
        """Render messages that `own` made; return the text and its words.

        Raises:
            RowRejectedError, TemplateError: as `ChatTemplate.render`.
        """
        environment, compiled = self._environment, self._compiled
        inputs = self.template.inputs(chat, tools, add_generation_prompt=add_generation_prompt)

        def render() -> str:
            environment.blocks = 0
            return join(compiled.root_render_func(compiled.new_context(inputs)))

        text = self.template.guarded(render)
        if type(text) is not TrackedStr:
            return Marked(text, [], environment.blocks)
        words, text = sorted(words_of(text)), str.__str__(text)
        written = {code for begin, end, code in words if code <= TOOLS and end > begin}
        return Marked(text, [word for word in words if word[2] > TOOLS], environment.blocks, written)

    def own(self, messages: Messages, words: Mapping[int, tuple[Word, ...]] | None = None) -> Messages:
        """Messages as the template sees them, with tracked contents.

        Args:
            words: by index of a message, the words of its content if they have different codes.

        Raises:
            RowRejectedError: there is no message, or one is not a JSON object.
        """
        if not messages:
            raise self.template.rejected("there is no message to render")
        made: Messages = []
        for index, message in enumerate(messages):
            if (
                type(message) is dict
                and len(message) == 2
                and type(content := message.get("content")) is str
                and type(message.get("role")) is str
            ):  # as most are
                own = message.copy()
                own["content"] = owned(content, index << MESSAGE)
                made.append(own)
            else:
                made.append(self._message(message, index))
        for index, several in (words or {}).items():
            made[index] = {**made[index], "content": tracked(messages[index]["content"], several)}
        return made

    def tools(self, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """Tool schemas as the template sees them. Equal ones share one object, whose JSON is made once.

        Raises:
            RowRejectedError: a tool is not a JSON object.
        """
        if tools is None:
            return None
        try:
            key = marshal.dumps(tools, 2)  # distinguishes all JSON values, and refuses subclasses
        except ValueError:
            key = b""
        kept = self._tools.get(key)
        if kept is not None:
            return kept
        if not all(isinstance(tool, dict) for tool in tools):
            raise self.template.rejected("every tool must be a JSON object")
        made: list[dict[str, Any]] = [_tool(tool, TOOLS - 1 - k) for k, tool in enumerate(plain(tools))]
        if key:
            if len(self._tools) >= _MAX_KEPT:
                self._tools.clear()
                self._environment.kept.clear()
            self._tools[key] = made
            self._environment.keep(made, TOOLS)
            for k, tool in enumerate(made):
                self._environment.keep(tool, TOOLS - 1 - k)
                if type(tool.get("function")) is dict:
                    self._environment.keep(tool["function"], TOOLS - 1 - k)
        return made

    def _message(self, message: Any, index: int) -> Message:
        code = index << MESSAGE
        if not isinstance(message, Mapping):
            raise self.template.rejected(f"a message must be a JSON object, not {type(message).__name__}")
        made: Message = {}
        for key, value in message.items():
            if value is None:
                continue
            if type(key) is not str:
                made[plain(key)] = plain(value)
            elif key in _WORDS_KEYS:
                kind = 0 if key == "content" else REASONING
                made[key] = owned(value, code | kind) if type(value) is str else _parts(plain(value), index, kind)
            elif type(value) is str:
                made[key] = value
            elif key == "tool_calls" or key == "function_call":
                calls = value if type(value) is list else [value]
                owned_calls = [_call(call, code_of(index, number, CALL)) for number, call in enumerate(calls, 1)]
                made[key] = owned_calls if type(value) is list else owned_calls[0]
            else:
                made[key] = plain(value)
        return made if _REASONING.isdisjoint(made) else with_reasoning(made)


def is_reasoning_part(part: Any) -> bool:
    """Whether a part of a content is reasoning."""
    return type(part) is dict and part.get("type") in _REASONING_TYPES


def _parts(value: Any, index: int, kind: int) -> Any:
    """Parts of a content, with tracked texts."""
    if type(value) is not list:
        return _part(value, code_of(index, 0, kind))
    return [
        _part(part, code_of(index, number, REASONING if is_reasoning_part(part) else kind))
        for number, part in enumerate(value, 1)
    ]


def _part(value: Any, code: int) -> Any:
    if type(value) is str:
        return owned(value, code)
    if type(value) is list:
        return [_part(item, code) for item in value]
    if type(value) is dict:
        return {
            key: owned(item, code) if key in PART_KEYS and type(item) is str else item for key, item in value.items()
        }
    return value


def _tool(tool: dict[Any, Any], code: int) -> dict[Any, Any]:
    """A tool with tracked name and description."""
    made = dict(tool)
    for key, item in tool.items():
        if key in TOOL_KEYS and type(item) is str:
            made[key] = owned(item, code)
        elif key == "function" and type(item) is dict:
            made[key] = _tool(item, code)
    return made


def _call(value: Any, code: int) -> Any:
    """A tool call with tracked name and arguments."""
    if type(value) is not dict:
        return plain(value)
    made = OwnedDict(code)
    for key, item in value.items():
        if key == "function":
            made[key] = _call(item, code)
        elif key in CALL_KEYS:
            made[key] = _all(item, code)
        else:
            made[plain(key)] = plain(item)
    return made


def _all(value: Any, code: int) -> Any:
    if type(value) is str:
        return owned(value, code)
    if type(value) is list:
        return [_all(item, code) for item in value]
    if type(value) is dict:
        made = OwnedDict(code)
        for key, item in value.items():
            own = owned(item, code) if type(item) is str else _all(item, code)
            made[owned(key, code) if type(key) is str else _all(key, code)] = own
        return made
    return plain(value)
