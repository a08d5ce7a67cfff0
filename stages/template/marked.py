"""Renders a conversation so that every character knows the message it came from, in one pass.

Contents enter the template as `TrackedStr`: strings that behave normally and remember where they came from. So one
rendering gives the text and the origin of its words.
"""

import marshal
from collections.abc import Callable
from typing import Any, NamedTuple

from jinja2.runtime import LoopContext

from ...schemas.rows import Messages
from .chat_template import ChatTemplate, plain
from .environment import GuardedNamespace, Sandbox, compile_template, make_environment, tojson
from .owned import OwnedDict, origin_of
from .tracked_str import (
    GENERATION,
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
        self.kept: dict[int, dict[str, str]] = {}
        """The JSON of tools that `Marker` keeps, by their `id`, for each set of options."""

        def generation(text: str) -> str:
            self.blocks += 1
            block = (0, len(text), GENERATION)
            return tracked(text, (*words_of(text), block))

        self.generation = generation

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
            if options not in kept:
                kept[options] = tojson(value, *args, **kwargs)
            return kept[options]
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


_MAX_KEPT = 1024


class Marked(NamedTuple):
    """A rendering with its words."""

    text: str
    words: list[Word]
    """Sorted."""
    blocks: int
    """Number of generation blocks that ran; it must equal the number of words that belong to blocks."""


class Marker:
    """Renders with `TrackedStr` contents.

    Args:
        template: the chat template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
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
        return Marked(str.__str__(text), sorted(words_of(text)), environment.blocks)

    def tools(self, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """Tool schemas as the template sees them. Equal ones share one object, whose JSON is made once."""
        if tools is None:
            return None
        try:
            key = marshal.dumps(tools, 2)  # distinguishes all JSON values, and refuses subclasses
        except ValueError:
            return plain(tools)  # type: ignore[no-any-return]
        if key not in self._tools:
            if len(self._tools) >= _MAX_KEPT:
                self._tools.clear()
                self._environment.kept.clear()
            made = self._tools[key] = plain(tools)
            for one in (made, *made, *(tool.get("function") for tool in made)):
                self._environment.kept[id(one)] = {}
        return self._tools[key]
