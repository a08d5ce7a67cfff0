"""The sandbox for `TrackedStr`: filters and joins keep where each character came from."""

from collections.abc import Callable
from typing import Any

from .assistant_turns import CALL, GENERATION, MESSAGE, code_of
from .environment import Sandbox, tojson
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
    """The sandbox with tracked strings."""

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
