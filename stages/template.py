"""A chat template as jinja2 renders it: the truth that every faster path is held against.

The rules around the rendering (which keys are dropped, which are aliased, what a template may touch) are
those of transformers 5's `apply_chat_template(..., tokenize=False)`, so that the text is the same to the
letter. Two things differ on purpose, because the text may depend on nothing but the data and the
configuration: the date is pinned, and a template cannot draw random numbers.
"""

import dataclasses
import datetime as dt
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

import jinja2
import numpy as np
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ..schemas.errors import PacktrainError, RowRejectedError, TemplateError
from ..schemas.hints import setting
from ..schemas.rows import Message, Messages
from .bounded import (
    BINOPS,
    METHODS,
    MachineLimitError,
    TemplateLimitError,
    concat,
    counted,
    limited,
    limited_filters,
    require_call,
    require_indent,
    require_operation,
)

REASON = "template_error"
"""The word that the ledger counts refused rows by."""
LIMIT = "template_limit"
"""The word for rows on which the template did or made too much."""
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_DETAIL_CHARS = 500
_VALUES = (str, int, float, type(None))
_ADDRESS = " at 0x"
"""How Python writes what has no text of its own: `<generator object at 0x7f...>`."""


class ChatTemplate:
    """A compiled chat template with its variables.

    It travels between processes as its five arguments and is compiled again there (a few milliseconds).

    Args:
        source: the jinja2 text.
        variables: what the template sees by name: the tokenizer's `special_tokens_map`, and switches such as
            `enable_thinking`.
        name: what errors call it: the file or tokenizer that it came from.
        date: an ISO date (`2024-07-26`) that `strftime_now` formats, or None.
        on_limit: whether a row on which the template does or makes too much is rejected, or is an error. Too much time
            or memory is always an error, because it depends on the machine.

    Raises:
        TemplateError: the source does not compile, the date is no ISO date, or a variable's name is reserved.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        name: str,
        date: str | None = None,
        on_limit: Literal["error", "reject"] = "error",
    ) -> None:
        self.source = source
        self.variables: dict[str, Any] = {str(key): plain(value) for key, value in variables.items()}
        self.name = name
        self.date = date
        self.on_limit = on_limit
        for key in _RESERVED:
            if key in self.variables:
                raise TemplateError(
                    f"chat template '{name}': the variable '{key}' would hide what every template is given; "
                    "give it another name"
                )
        try:
            with limited():  # jinja2 computes what is constant
                self._template = compile_template(make_environment(BoundedEnvironment, name, date), source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"chat template '{name}' does not compile: {error.message} (line {error.lineno}); "
                "mend the template, or name another one"
            ) from error
        except Exception as error:  # jinja2 hands some mistakes on to Python's own compiler
            raise TemplateError(
                f"chat template '{name}' does not compile: {error}; mend the template, or name another one"
            ) from error
        written = self._template.root_render_func.__globals__
        written["str"] = _written
        written["str_join"] = lambda pieces: concat(map(_written, pieces))

    def __reduce__(self) -> tuple[type["ChatTemplate"], tuple[Any, ...]]:
        return type(self), (self.source, self.variables, self.name, self.date, self.on_limit)

    @property
    def mentions_date(self) -> bool:
        """Whether the source names `strftime_now`, so that its text may depend on the pinned date."""
        return "strftime_now" in self.source

    @property
    def marks_generation(self) -> bool:
        """Whether the source says by `{% generation %}` what the assistant says."""
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
            TemplateError: the template asks for the date and none is pinned, or wants a random number.
        """
        if not messages:
            raise self.rejected("there is no message to render")
        chat = [self._message(message) for message in messages]
        if tools is not None and not all(isinstance(tool, dict) for tool in tools):
            raise self.rejected("every tool must be a JSON object")
        inputs = self.inputs(chat, plain(tools), add_generation_prompt=add_generation_prompt)
        return self.guarded(lambda: self._template.render(inputs))

    def guarded(self, render: Callable[[], str]) -> str:
        """What `render` gives, within the limits, and its errors as this template's.

        Raises:
            RowRejectedError, TemplateError: as `render`.
        """
        try:
            try:
                with limited():
                    return render()
            except MemoryError:  # of a process that has grown since the watch last looked, perhaps
                with limited(again=True):
                    return render()
        except PacktrainError:
            raise
        except MachineLimitError as error:
            raise TemplateError(
                f"chat template '{self.name}' was stopped: {error}. Fix the template, or leave the row out"
            ) from error
        except TemplateLimitError as error:
            what = f"chat template '{self.name}' was stopped: {error}"
            if self.on_limit == "reject":
                raise RowRejectedError(LIMIT, what) from error
            raise TemplateError(
                f"{what}. Fix the template, or, if only single rows do this to it: "
                f"{setting('tokenizer.on_limit', 'reject')}"
            ) from error
        except Exception as error:
            message = str(error) or "no message"
            raise self.rejected(f"{type(error).__name__}: {message[:_DETAIL_CHARS]}") from error

    def inputs(self, chat: Messages, tools: Any, *, add_generation_prompt: bool) -> dict[str, Any]:
        """Everything that the template sees by name."""
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
        result: Message = plain({key: value for key, value in message.items() if value is not None})
        for key in REASONING_KEYS:
            reasoning = result.get(key)
            if reasoning is not None:
                return {"thinking": reasoning, **result, "reasoning_content": reasoning}
        return result

    def rejected(self, detail: str) -> RowRejectedError:
        """The error for a row that the template refuses."""
        return RowRejectedError(REASON, f"chat template '{self.name}': {detail}")


def plain(value: Any) -> Any:
    """A copy made of JSON types only, so that a template cannot get at methods of richer objects.

    Anything else becomes a placeholder that names its type, such as `<Image>`.
    """
    kind = type(value)
    if value is None or kind is str or kind is int or kind is float or kind is bool:
        return value
    for base in (str, int, float):  # subclasses, enums among them, are taken back to the bare value
        if isinstance(value, base):
            return base.__str__(value) if base is str else getattr(base, f"__{base.__name__}__")(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)  # pydantic
    if callable(dump):
        return plain(dump())
    return f"<{kind.__name__}>"


class CountingCode(CodeGenerator):
    """Counts what loops go through."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._iterated: set[int] = set()
        """Identities of the expressions that loops go through."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 - jinja2 asks for this name
        """See jinja2."""
        self._iterated.add(id(node.iter))
        super().visit_For(node, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """See jinja2."""
        if id(node) not in self._iterated:
            return super().visit(node, *args, **kwargs)
        self.write("_counted(")
        super().visit(node, *args, **kwargs)
        self.write(")")
        return None


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with limits on what a template can make."""

    intercepted_binops = BINOPS
    code_generator_class = CountingCode
    concat = staticmethod(concat)
    generation: Callable[[str], str] = staticmethod(str)
    """What becomes of the text of a `{% generation %}` block."""

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """See jinja2."""
        require_call(__callee, args, kwargs)
        return super().call(__context, __callee, *args, **kwargs)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """See jinja2. It rewrites tracebacks, and fails where a watch ended an instruction that has no line."""
        error = sys.exc_info()[1]
        if isinstance(error, (TemplateLimitError, MemoryError)):
            raise error
        super().handle_exception(source)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """See jinja2. Of values, only methods that templates use."""
        for kind, names in METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See jinja2."""
        require_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)


def compile_template(environment: BoundedEnvironment, source: str | nodes.Template) -> jinja2.Template:
    """Compile a template so that `~`, too, joins as the environment does."""
    code = environment.compile(source)
    template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    template.root_render_func.__globals__["_counted"] = counted
    template.root_render_func.__globals__["str_join"] = lambda pieces: environment.concat(map(str, pieces))
    return template


def make_environment(kind: type[BoundedEnvironment], name: str, date: str | None) -> BoundedEnvironment:
    """The environment that chat templates are written for: whitespace rules, tags, filters, globals."""
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, LoopControlExtension])
    limited_filters(environment.filters)
    environment.filters["tojson"] = tojson
    environment.filters["random"] = _no_chance
    environment.globals["lipsum"] = _no_chance
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _clock(name, date)
    environment.globals["dict"] = DictMaker()
    environment.globals["namespace"] = GuardedNamespace
    return environment


class GenerationTag(Extension):
    """Accepts `{% generation %} ... {% endgeneration %}` and renders what is inside.

    The body is a call block, as in transformers, because that decides which variables it can set.
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
    """jinja2's `namespace()` that refuses names with a leading underscore: they lead into the interpreter.

    What it holds are its own attributes, which Python finds quicker than jinja2's methods do.
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
    """What templates know as `dict`: it makes dictionaries and has nothing else to offer."""

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
    """The filter of that name."""
    require_indent(indent)
    # jinja2's own filter escapes for HTML, which would change the text that a model sees.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(message)


def _written(value: Any = "") -> str:
    """What a template writes of a value: `str`, but of values only."""
    text = str(value)
    if not isinstance(value, _VALUES) and _ADDRESS in text:
        _require_values(value)
    return text


def _require_values(value: Any) -> None:
    """Refuse an object of the interpreter, whose text is its place in memory, and what holds one."""
    if isinstance(value, (list, tuple)):
        for item in value:
            _require_values(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _require_values(key)
            _require_values(item)
    elif not isinstance(value, _VALUES) and _ADDRESS in str(value):
        raise TemplateError(
            f"the chat template writes a {type(value).__name__} by its address in memory, so the same data would not "
            "give the same shards; after `map`, `select` and the like write `| list` or `| join`"
        )


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
                f"say which date it is told, such as {setting('tokenizer.date', '2024-07-26')}"
            )

        return refuse
    try:
        pinned = dt.datetime.fromisoformat(date)
    except ValueError as error:
        raise TemplateError(f"chat template '{name}': `tokenizer.date` is {date!r}; write it as 2024-07-26") from error
    return lambda format: pinned.strftime(format)
