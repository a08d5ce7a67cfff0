"""Renders a conversation so that every character knows the message it came from, in one pass.

Contents enter the template as `TrackedStr`: strings that behave normally and remember where they came from. So one
rendering gives the text and the origin of its words.
"""

import marshal
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from jinja2.runtime import LoopContext

from ...schemas.rows import Messages
from .chat_template import ChatTemplate, plain
from .environment import GuardedNamespace, Sandbox, compile_template, make_environment, tojson
from .owned import OwnedDict, Owner, origin_of
from .tracked_str import (
    GENERATION,
    TOOLS,
    TrackedStr,
    Word,
    join,
    owned,
    tracked,
    words_of,
)

_DICT_NAMES = frozenset(dir(dict))
_LOOP_NAMES = frozenset({"index", "index0", "first", "last", "length"})


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
        kind = type(obj)
        if kind is dict or kind is OwnedDict:
            if attribute not in _DICT_NAMES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif kind is GuardedNamespace:
            if attribute in obj.__dict__:
                return obj.__dict__[attribute]  # its names are all safe
        elif kind is LoopContext and attribute in _LOOP_NAMES:
            return getattr(obj, attribute)
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
        owner = origin_of(value)
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


TOOL_KEYS = ("name", "description")
"""Keys of a tool whose words a template always writes if it writes the tool."""
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


class Marker(Owner):
    """Renders with `TrackedStr` contents.

    Args:
        template: the chat template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        super().__init__(template)
        self._environment = make_environment(TrackingEnvironment, template.name, template.date)
        self._compiled = compile_template(self._environment, template.source, template.name)
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


def _tool(tool: dict[Any, Any], code: int) -> dict[Any, Any]:
    """A tool with tracked name and description."""
    made = dict(tool)
    for key, item in tool.items():
        if key in TOOL_KEYS and type(item) is str:
            made[key] = owned(item, code)
        elif key == "function" and type(item) is dict:
            made[key] = _tool(item, code)
    return made
