"""Renders a conversation so that every character knows the message it came from, in one pass.

Contents go into the template as ropes (`rope.py`): strings that behave as themselves and remember where they came from.
So this is both the rendering and the proof of where its words lie. The environment below answers the questions that
templates ask most without jinja2's detour through exceptions; what it answers is what the sandbox would.

Held against plain jinja2 on the first rows and on a sample, as traces are.
"""

import marshal
from collections.abc import Callable, Collection, Iterator, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import Frame
from jinja2.runtime import Context, LoopContext
from jinja2.utils import missing

from ..schemas.rows import Message, Messages
from .bounded import MAX_CHARACTERS, require_size
from .rope import Rope, join, owned, owner_of, rope, words_of
from .template import (
    REASONING_KEYS,
    BoundedEnvironment,
    ChatTemplate,
    CountingCode,
    GuardedNamespace,
    compile_template,
    make_environment,
    plain,
    tojson,
)
from .turns import CALL, GENERATION, MESSAGE, REASONING, TOOLS, Word, code_of

_DICT_NAMES = frozenset(dir(dict))
_LOOP_NAMES = frozenset({"first", "index", "index0", "last", "length", "revindex", "revindex0"})
_SAFE_METHODS = frozenset(
    {
        *("strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "partition", "rpartition", "startswith"),
        *("endswith", "upper", "lower", "title", "capitalize", "find", "index", "count", "removeprefix"),
        *("removesuffix", "isspace", "isdigit", "isupper", "islower"),
    }
)
"""Methods of a string that cannot lead out of the sandbox, nor make much of little."""
_WORDS_KEYS = ("content", *REASONING_KEYS)
PART_KEYS = ("text", "refusal", *_WORDS_KEYS)
"""Where the words of a part of a content stand."""
CALL_KEYS = ("name", "arguments", "parameters", "input")
"""Where the words of a tool call stand."""
TOOL_KEYS = ("name", "description")
"""Where the words of a tool stand that a template surely writes if it writes the tool."""
_REASONING_TYPES = ("thinking", "reasoning")
_MAX_KEPT = 1024
_COUNTED = 1 << 16
"""Characters of a text from which on its methods are weighed."""


class Marked:
    """A rendering with its words."""

    __slots__ = ("blocks", "text", "tools", "words")

    def __init__(self, text: str, words: list[Word], blocks: int, tools: Collection[int] = ()) -> None:
        self.text = text
        self.words = words
        """Sorted; those of tools are not among them."""
        self.tools = tools
        """Codes of the tools that left words."""
        self.blocks = blocks
        """How many generation blocks ran; as many of the words must be theirs."""


class Marker:
    """Renders with ropes.

    Args:
        template: the chat template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        environment = make_environment(_MarkingEnvironment, template.name, template.date)
        assert isinstance(environment, _MarkingEnvironment)
        self._environment = environment
        self._compiled = compile_template(environment, template.source)
        self._render = self._compiled.root_render_func
        names = {"LoopContext": _Loop, "_Loop": _Loop, "_Namespace": GuardedNamespace, "_Rope": Rope}
        self._render.__globals__.update(names)
        self._tools: dict[bytes, list[dict[str, Any]]] = {}

    def render(
        self, chat: Messages, tools: list[dict[str, Any]] | None, *, add_generation_prompt: bool = False
    ) -> Marked:
        """The text and words of messages that `own` made.

        Raises:
            RowRejectedError, TemplateError: as `ChatTemplate.render`.
        """
        environment = self._environment
        inputs = self.template.inputs(chat, tools, add_generation_prompt=add_generation_prompt)

        def render() -> str:
            environment.blocks = 0
            return _concat(self._render(self._compiled.new_context(inputs)))

        text = self.template.guarded(render)
        if type(text) is not Rope:
            return Marked(text, [], environment.blocks)
        words = sorted(words_of(text))
        if not tools:
            return Marked(str.__str__(text), words, environment.blocks)
        written = {code for begin, end, code in words if code <= TOOLS and end > begin}
        words = [word for word in words if word[2] > TOOLS]
        return Marked(str.__str__(text), words, environment.blocks, written)

    def own(self, messages: Messages) -> Messages:
        """Messages as the template sees them, their contents as ropes.

        Raises:
            RowRejectedError: one is not a JSON object, or there is none.
        """
        if not messages:
            raise self.template.rejected("there is no message to render")
        return [self._message(message, index) for index, message in enumerate(messages)]

    def tools(self, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """Tool schemas as the template sees them. Equal ones are one object, whose JSON is made once.

        Raises:
            RowRejectedError: one is not a JSON object.
        """
        if tools is None:
            return None
        try:
            key = marshal.dumps(tools, 2)  # tells apart all that JSON can hold, and refuses subclasses
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
        code = code_of(index)
        made: Message
        if is_plain(message):
            made = message.copy()
            made["content"] = owned(made["content"], code)
            return made
        if not isinstance(message, Mapping):
            raise self.template.rejected(f"a message must be a JSON object, not {type(message).__name__}")
        made = {}
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
        return _with_reasoning(made)


def is_plain(message: Any) -> bool:
    """Whether a message is a role and a content that is a text, as most are."""
    return (
        type(message) is dict
        and len(message) == 2
        and type(message.get("role")) is str
        and type(message.get("content")) is str
    )


def _with_reasoning(made: Message) -> Message:
    """As transformers does it: what a message's reasoning is called, is called by the other names, too."""
    for key in REASONING_KEYS:
        reasoning = made.get(key)
        if reasoning is not None:
            return {"thinking": reasoning, **made, "reasoning_content": reasoning}
    return made


def is_reasoning_part(part: Any) -> bool:
    """Whether a part of a content is reasoning."""
    return type(part) is dict and part.get("type") in _REASONING_TYPES


def _parts(value: Any, index: int, kind: int) -> Any:
    """Parts of a content, their texts as ropes."""
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
    """A tool, its name and description as ropes."""
    made = dict(tool)
    for key, item in tool.items():
        if key in TOOL_KEYS and type(item) is str:
            made[key] = owned(item, code)
        elif key == "function" and type(item) is dict:
            made[key] = _tool(item, code)
    return made


def _call(value: Any, code: int) -> Any:
    """A tool call, its name and arguments as ropes."""
    if type(value) is not dict:
        return plain(value)
    made = _Owned()
    made._code = code
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
        made = _Owned()
        made._code = code
        for key, item in value.items():
            made[_all(key, code)] = _all(item, code)
        return made
    return plain(value)


class _Owned(dict[Any, Any]):
    """A tool call, its function or its arguments: a dictionary that remembers the message it came from."""

    __slots__ = ("_code",)
    _code: int


def _owner(value: Any) -> int | None:
    """The code of what came from one place: of several tool calls of a message, that of all of them."""
    if type(value) is _Owned:
        return value._code
    if type(value) is not list or not value or type(value[0]) is not _Owned:
        return owner_of(value)
    code = value[0]._code
    if all(type(item) is _Owned and item._code == code for item in value):
        return code
    return code_of(code >> MESSAGE, 0, CALL)


def _concat(pieces: Any) -> str:
    parts = list(pieces)
    size = sum(map(len, parts))
    if size > MAX_CHARACTERS:
        require_size(size)
    return join(parts)


class _Loop(LoopContext):
    """What a template knows as `loop`, quicker where it goes through a list."""

    def __iter__(self) -> Any:
        return self._through() if type(self._iterable) is list else self

    def _through(self) -> Iterator[tuple[Any, LoopContext]]:
        for item in self._iterator:
            self.index0 += 1
            yield item, self

    def _peek_next(self) -> Any:
        if type(self._iterable) is not list:
            return super()._peek_next()
        following = self.index0 + 1
        return self._iterable[following] if following < len(self._iterable) else missing

    @property
    def last(self) -> bool:
        """See jinja2."""
        return self._peek_next() is missing

    @property
    def previtem(self) -> Any:
        """See jinja2."""
        if type(self._iterable) is not list or self.first:
            return super().previtem
        return self._iterable[self.index0 - 1]

    def __repr__(self) -> str:
        return f"<LoopContext {self.index}/{self.length}>"


class _QuickCode(CountingCode):
    """Looks keys of plain dictionaries up where the template stands, without asking the environment."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802 - jinja2 asks for this name
        """See jinja2."""
        if node.attr in _DICT_NAMES:
            super().visit_Getattr(node, frame)
        else:
            self._lookup("getattr", node.node, node.attr, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        """See jinja2."""
        if isinstance(node.arg, nodes.Const) and type(node.arg.value) is str:
            self._lookup("getitem", node.node, node.arg.value, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """See jinja2. A safe method of a text is called where the template stands; its arguments are written twice."""
        method, plainly = node.node, not (node.kwargs or node.dyn_args or node.dyn_kwargs or forward_caller)
        plainly = plainly and all(isinstance(argument, nodes.Const) for argument in node.args)
        if not plainly or not isinstance(method, nodes.Getattr) or method.attr not in _SAFE_METHODS:
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"(_q.{method.attr}(*{tuple(argument.as_const() for argument in node.args)!r}) if ((_q := ")
        self.visit(method.node, frame)
        self.write(f").__class__ is _Rope or _q.__class__ is str) and len(_q) < {_COUNTED} else environment.call(")
        self.write(f"context, environment.getattr(_q, {method.attr!r})")
        scope = {"_loop_vars": "_loop_vars"} if frame.loop_frame else {}
        self.signature(node, frame, {**scope, **({"_block_vars": "_block_vars"} if frame.block_frame else {})})
        self.write("))")

    def _lookup(self, how: str, subject: nodes.Expr, key: str, frame: Frame) -> None:
        # One name will do for all: it is read again before anything else can set it.
        missing = f"environment.undefined(obj=_q, name={key!r})"
        if key in _DICT_NAMES:
            missing = f"environment.{how}(_q, {key!r})"
        self.write(f"((_q[{key!r}] if {key!r} in _q else {missing}) if (_q := ")
        self.visit(subject, frame)
        other = ""
        if how == "getattr" and key in _LOOP_NAMES:
            other = f"_q.{key} if _q.__class__ is _Loop else "
        elif how == "getattr" and not key.startswith("_"):
            other = f"_q.{key} if _q.__class__ is _Namespace and {key!r} in _q.__dict__ else "
        self.write(f").__class__ is dict else {other}environment.{how}(_q, {key!r}))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if self._writes_plainly(frame, finalize):
            self.write("(_s if (_s := ")
        else:
            super()._output_child_pre(node, frame, finalize)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if self._writes_plainly(frame, finalize):
            self.write(").__class__ is _Rope else str(_s))")
        else:
            super()._output_child_post(node, frame, finalize)

    @staticmethod
    def _writes_plainly(frame: Frame, finalize: Any) -> bool:
        """Whether what is written is made a text by `str` alone, which is slow for ropes."""
        return not frame.eval_ctx.volatile and not frame.eval_ctx.autoescape and finalize.src is None


class _MarkingEnvironment(BoundedEnvironment):
    """The sandbox, quicker, and remembering."""

    code_generator_class = _QuickCode
    concat = staticmethod(_concat)
    blocks: int
    kept: dict[int, tuple[int, dict[str, Rope]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.blocks = 0
        self.kept = {}
        """Tools that `Marker` keeps, by identity: their code, and their JSON by options."""

        def generation(text: str) -> str:
            self.blocks += 1
            block = (0, len(text), GENERATION)
            return rope(text, (*words_of(text), block))

        self.generation = generation

    def keep(self, value: Any, code: int) -> None:
        """Remember a value that stays alive, so that its JSON is made once and is owned."""
        self.kept[id(value)] = (code, {})

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """See jinja2."""
        filters: dict[str, Any] = self.filters
        filters["tojson"] = self._tojson
        filters["join"] = _joined(filters["join"])
        return super().compile(*args, **kwargs)

    def _tojson(self, value: Any, *args: Any, **kwargs: Any) -> str:
        kept = self.kept.get(id(value))
        if kept is not None:
            options = repr((args, kwargs))  # as they are: 1 and 1.0 are equal, and lists cannot be keys
            code, texts = kept
            if options not in texts:
                texts[options] = owned(tojson(value, *args, **kwargs), code)
            return texts[options]
        text = tojson(value, *args, **kwargs)
        owner = _owner(value)
        return text if owner is None else owned(text, owner)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See jinja2."""
        kind = type(obj)
        if kind is dict or kind is _Owned:
            if attribute not in _DICT_NAMES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif kind is _Loop or kind is GuardedNamespace:
            if not attribute.startswith("_"):
                try:
                    return getattr(obj, attribute)
                except AttributeError:
                    pass
        elif (kind is str or kind is Rope) and attribute in _SAFE_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """See jinja2."""
        kind = type(__callee)
        if (kind is BuiltinMethodType or kind is MethodType) and not kwargs:
            subject = type(__callee.__self__)
            small = (subject is str or subject is Rope) and len(__callee.__self__) < _COUNTED
            if small and __callee.__name__ in _SAFE_METHODS:
                return __callee(*args)
        return super().call(__context, __callee, *args, **kwargs)


def _joined(inner: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        if attribute is None and not context.autoescape:
            value = value if isinstance(value, (list, tuple, str)) else list(value)
            if type(d) is str and isinstance(value, (list, tuple)) and any(type(item) is Rope for item in value):
                texts = [item if isinstance(item, str) else str(item) for item in value]
                require_size(sum(map(len, texts)) + len(d) * len(texts))
                return join(texts, d)
        return inner(context, value, d, attribute)

    wrapper.jinja_pass_arg = inner.jinja_pass_arg  # type: ignore[attr-defined]
    return wrapper
