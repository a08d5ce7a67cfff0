"""The sandbox that chat templates run in: what they may call, and which names they see.

Tags, filters and globals are those of transformers. Results that depend on anything but the data and the configuration
(random numbers, today's date, memory addresses) are refused.

A stage has no clock, so a watch of the process limits time and memory (`pipeline.execute.template_watchdog`). Both
depend on the machine, and exceeding them always ends the run: it never rejects a row.
"""

import datetime as dt
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeAlias, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ...schemas.errors import StoppedTemplateError, TemplateError

MAX_CHARACTERS = 1 << 28
"""Maximum number of characters of a rendering."""


Watch: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Opens a context that raises MemoryError if its body takes too much memory, or does not survive too much time."""

Result = TypeVar("Result")
_watches: list[Watch] = []


def watch_by(watch: Watch | None) -> None:
    """Watch every rendering of this process, because a stage has no clock. None removes the watch."""
    _watches[:] = [] if watch is None else [watch]


def limited(body: Callable[[], Result], stopped: str) -> Result:
    """Call a body under the watch, if there is one, and return its result.

    If memory runs out, the body is called once more, because the process may have grown since the watch last looked.

    Args:
        stopped: what to say of a body that is stopped.

    Raises:
        StoppedTemplateError: the body took too much memory, or nested too deeply.
    """
    watch = _watches[0] if _watches else nullcontext
    try:
        try:
            with watch():
                return body()
        except MemoryError:
            with watch():
                return body()
    except MemoryError as error:
        raise _stopped(stopped, "it asked for more memory than a rendering may have") from error
    except RecursionError as error:
        raise _stopped(stopped, "it nests too deeply, or without end") from error


def require_size(characters: int, stopped: str) -> None:
    """Refuse a text that would be too long.

    Raises:
        StoppedTemplateError: it would be.
    """
    if characters > MAX_CHARACTERS:
        raise _stopped(stopped, f"it makes a text of more than {MAX_CHARACTERS >> 20} Mi characters")


def _stopped(what: str, why: str) -> StoppedTemplateError:
    return StoppedTemplateError(f"{what}: {why}; fix the template, leave the row out, or name another template")


_JSON = json.JSONEncoder(ensure_ascii=False)
"""What `json.dumps` would make for every call of `tojson` without options."""
_ADDRESS = " at 0x"
"""Matches the default text of a Python object: `<generator object at 0x7f...>`."""
_SAFE: dict[tuple[type, str], bool] = {}
"""Whether templates may read an attribute of values of a type."""
_MOST_SAFE = 4096


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox."""

    generation: Callable[[str], str] = staticmethod(str)
    """Applied to the text of a `{% generation %}` block."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """See jinja2. The answer depends on the type alone, and is kept, because jinja2 takes 10 µs to find it."""
        safe = _SAFE.get((type(obj), attr))
        if safe is None:
            if len(_SAFE) >= _MOST_SAFE:
                _SAFE.clear()
            safe = _SAFE[type(obj), attr] = super().is_safe_attribute(obj, attr, value)
        return safe


EnvironmentType = TypeVar("EnvironmentType", bound=Sandbox)


def compile_template(environment: Sandbox, source: str | nodes.Template, name: str) -> jinja2.Template:
    """Compile a template so that `~` also joins by the environment's own function. Constants are computed, so the watch
    is open.

    Raises:
        StoppedTemplateError: see `limited`.
    """
    code = limited(lambda: environment.compile(source), f"chat template '{name}' was stopped while it was compiled")
    # `make_globals` returns a ChainMap, which every rendering would copy, in 10 µs.
    template = jinja2.Template.from_code(environment, code, dict(environment.make_globals(None)))
    written = template.root_render_func.__globals__
    written["str"] = written_text
    written["str_join"] = lambda pieces: environment.concat(map(written_text, pieces))
    return template


def make_environment(kind: type[EnvironmentType], name: str, date: str | None) -> EnvironmentType:
    """The environment that chat templates are written for: whitespace rules, tags, filters, globals."""
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, LoopControlExtension])
    environment.filters["tojson"] = tojson
    environment.filters["random"] = _no_chance
    environment.globals["lipsum"] = _no_chance
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _clock(name, date)
    environment.globals["dict"] = DictMaker()
    environment.globals["namespace"] = GuardedNamespace
    return environment


class GenerationTag(Extension):
    """Accepts `{% generation %} ... {% endgeneration %}` and renders its content.

    The body is a call block, as in transformers, which decides the variables that it can set.
    """

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Called by jinja2 at the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return self.environment.generation(caller())  # type: ignore[attr-defined,no-any-return]


class GuardedNamespace(Namespace):
    """jinja2's `namespace()`, refusing names with a leading underscore, which lead into the interpreter.

    Values are plain attributes, which Python finds faster than jinja2's methods.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self` by name: `namespace(self=...)` is allowed
        held = dict(*args[1:], **kwargs)
        for name in held:
            _refuse_private(name)
        object.__setattr__(args[0], "__dict__", held)

    __getattribute__ = object.__getattribute__

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<Namespace {self.__dict__!r}>"


class DictMaker:
    """The `dict` of templates, which only makes dictionaries."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """`dict.fromkeys`."""
        return dict.fromkeys(*args)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: the name begins with an underscore")


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter."""
    if ensure_ascii is False and indent is None and separators is None and sort_keys is False:
        return _JSON.encode(value)
    # jinja2's own filter escapes for HTML, which would change the text that a model sees.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(message)


def written_text(value: Any = "") -> str:
    """Return the text of a value, as `str` does, but refuse objects that have only Python's default text, with their
    address.
    """
    text = str(value)
    if not isinstance(value, str) and _ADDRESS in text:
        try:
            _JSON.encode(value)  # has no form for them, wherever they stand
        except TypeError:
            raise TemplateError(
                f"the chat template writes a {type(value).__name__} by its address in memory, so the same data would "
                "not give the same shards; after `map`, `select` and the like write `| list` or `| join`"
            ) from None
    return text


def _no_chance(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise TemplateError(
        "the chat template asks for random output (`random` or `lipsum`), so the same data would not give "
        "the same shards; take that out of the template"
    )


def _clock(name: str, date: str | None) -> Callable[[str], str]:
    if date is None:

        def refuse(format: str) -> str:
            raise TemplateError(
                f"chat template '{name}' asks for today's date, which would change the data from day to day; "
                f"set the date that it gets, such as tokenizer.date=2024-07-26"
            )

        return refuse
    try:
        pinned = dt.datetime.fromisoformat(date)
    except ValueError as error:
        raise TemplateError(f"chat template '{name}': `tokenizer.date` is {date!r}; write it as 2024-07-26") from error
    return lambda format: pinned.strftime(format)
