"""The sandbox that chat templates run in: what they may call, and which names they see.

Tags, filters and globals are those of transformers. Results that depend on anything but the data and the configuration
(random numbers, today's date) are refused.

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

Watch: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Opens a context with limits for its body: it raises MemoryError if that takes too much memory, and ends the process
if it takes too much time."""

Result = TypeVar("Result")
# The watch of this process, in a list so that `watch_by` can replace it.
_watch: list[Watch] = [nullcontext]


def watch_by(watch: Watch) -> None:
    """Set the watch under which this process renders from now on."""
    _watch[0] = watch


def run_limited(body: Callable[[], Result], name: str) -> Result:
    """Call a body of a template under the watch, if there is one, and return its result.

    Args:
        name: of the template, for errors.

    Raises:
        StoppedTemplateError: the body took too much memory, or nested too deeply.
    """
    try:
        try:
            with _watch[0]():
                return body()
        except MemoryError:
            # Once more: the process may have grown since the watch last looked, through no fault of this rendering.
            with _watch[0]():
                return body()
    except MemoryError as error:
        raise stopped_error(name, "it asked for more memory than a rendering may have") from error
    except RecursionError as error:
        raise stopped_error(name, "it nests too deeply, or without end") from error


def stopped_error(name: str, reason: str) -> StoppedTemplateError:
    """The error for a template that was stopped."""
    return StoppedTemplateError(
        f"chat template '{name}' was stopped: {reason}; fix the template, leave the row out, or name another template"
    )


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, with the white space rules, tags, filters and globals that chat templates are written for.

    Args:
        name: of the template, for errors.
        date: an ISO date that `strftime_now` formats, or None.

    Raises:
        TemplateError: the date is not an ISO date.
    """

    def __init__(self, name: str, date: str | None) -> None:
        # As transformers sets them: templates are written for these rules of white space.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, LoopControlExtension])
        self.name = name
        # Declared as Any, because jinja2's stubs give filters a type that functions do not have.
        filters: dict[str, Any] = self.filters
        filters |= {"tojson": tojson, "random": _refuse_random}
        self.tests["sameas"] = _is_same
        self.globals.update(
            lipsum=_refuse_random,
            raise_exception=_raise_exception,
            strftime_now=_date_formatter(name, date),
            # A function, because the type would give templates methods that change a row, such as `dict.update`.
            dict=lambda *args, **kwargs: dict(*args, **kwargs),
            namespace=GuardedNamespace,
        )

    def generation(self, text: str) -> str:
        """Applied to the text of a `{% generation %}` block."""
        return text

    def compiled(self, source: str) -> jinja2.Template:
        """Compile a template so that `~` also joins by `concat`. Under the watch, because jinja2 computes constant
        expressions while it compiles.

        Raises:
            StoppedTemplateError: that took too much memory, or nested too deeply.
        """
        code = run_limited(lambda: self.compile(self.parse(source)), self.name)
        # `make_globals` returns a ChainMap, which every rendering would copy, in 10 µs. It is given None, because the
        # template has no globals but those of the sandbox.
        template = jinja2.Template.from_code(self, code, dict(self.make_globals(None)))
        # The compiled code joins the operands of `~` by a global of this name, which would lose their source spans.
        template.root_render_func.__globals__["str_join"] = lambda pieces: self.concat(map(str, pieces))
        return template


class GenerationTag(Extension):
    """Accepts `{% generation %} ... {% endgeneration %}` and renders its content.

    The body is a call block, as in transformers, which decides the variables that it can set.
    """

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Called by jinja2 at the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # The two empty lists are the parameters of the block and their defaults.
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return self.environment.generation(caller())  # type: ignore[attr-defined,no-any-return]


class GuardedNamespace(Namespace):
    """jinja2's `namespace()`, refusing names with a leading underscore, as in transformers.

    Values are plain attributes, which Python finds faster than jinja2's methods.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self` by name: `namespace(self=...)` is allowed
        for name, value in dict(*args[1:], **kwargs).items():
            args[0][name] = value

    # jinja2's own method looks names up in another dictionary.
    __getattribute__ = object.__getattribute__

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}: the name begins with an underscore")
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<Namespace {self.__dict__!r}>"


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter. jinja2's own escapes for HTML, which would change the text that a model sees."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _is_same(left: Any, right: Any) -> bool:
    """The test `sameas`."""
    # Whether equal texts are one object depends on Python's caches, so texts are compared by value.
    return left is right or (isinstance(left, str) and left == right)


def _raise_exception(message: Any) -> NoReturn:
    """The function by which a template refuses a conversation."""
    raise jinja2.TemplateError(message)


def _refuse_random(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise TemplateError(
        "the chat template asks for random output (`random` or `lipsum`), so the same data would not give "
        "the same shards; take that out of the template"
    )


def _date_formatter(name: str, date: str | None) -> Callable[[str], str]:
    """The function `strftime_now` of a template, which formats the pinned date instead of today's.

    Args:
        name: of the template, for errors.
    """
    try:
        pinned = dt.datetime.fromisoformat(date) if date is not None else None
    except ValueError as error:
        raise TemplateError(f"chat template '{name}': `tokenizer.date` is {date!r}; write it as 2024-07-26") from error

    def strftime_now(format: str) -> str:
        if pinned is None:
            raise TemplateError(
                f"chat template '{name}' asks for today's date, which would change the data from day to day; "
                f"set the date that it gets, such as tokenizer.date=2024-07-26"
            )
        return pinned.strftime(format)

    return strftime_now
