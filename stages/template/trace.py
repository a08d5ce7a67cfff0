"""The fast path of rendering: a template specialised to one pattern of roles.

A trace is made by rendering a row once with a `SymbolicStr` for each content. It is a short program: guards that a row
must answer like the guiding row, contents with white space stripped, and the pieces of the text. A row whose guards
hold takes the same path through the template, so its text is the join of these pieces.

The structure of that rendering's *skeleton*, a `TrackedStr` with one private character per value, is the same for all
contents. So turns are located in it as in any text, and runs end at the same places among the literals and values of
every row.

A trace is correct because of `SymbolicStr` and the environment below: jinja2 lets it see every call, attribute, filter,
test, `%`, `in` and join of a template, and it aborts if a content would reach code that cannot report what it inspects.
For such code, every symbolic string is the single character MARK; if that reaches the text, `concat` finds it. Only
what templates do to ordinary contents is traced; all other rows are rendered by jinja2.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, wraps
from itertools import accumulate, count, pairwise
from typing import Any, TypeAlias

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.visitor import NodeTransformer

from ...schemas.errors import StoppedTemplateError
from ...schemas.rows import Messages
from .assistant_turns import ASSISTANT, Chat, TemplateProfile, UnprovedError
from .chat_template import ChatTemplate
from .environment import (
    DictMaker,
    GuardedNamespace,
    Sandbox,
    compile_template,
    limited,
    make_environment,
    require_size,
)
from .locate import locate
from .owned import Owned
from .paint import painted
from .rendered import Rendered, Runs
from .tracked_str import GENERATION, Word, code_of, join, tracked, words_of

MAX_TRACES = 4096
"""Maximum number of traces to keep; when it is reached, all are forgotten."""
MAX_PATHS = 64
"""Maximum number of traces for one pattern."""
MARK = "\U0010fffd"
"""A private-use character without case, width or meaning: string methods leave it as it is."""
_PLANE = 0xF0000
"""In a skeleton, value n is the character with this code point plus n."""
_MAX_VALUES = 0xFFF0
_VALUE = re.compile("[\U000f0000-\U000ffff0]")
"""Matches a value in a skeleton."""
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")

_STRIPS = frozenset({"strip", "lstrip", "rstrip"})
_INSPECTIONS = frozenset({"startswith", "endswith"})
_FILTERS = {
    *("count", "d", "default", "first", "last", "length", "list", "map", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "string"),
}
"""Filters that pass contents on, and inspect them at most through methods of `SymbolicStr`."""
_TYPE_TESTS = {
    *("boolean", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number", "sequence"),
    *("string", "true", "undefined"),
}
"""Tests of the type alone, which is `str` for every content."""
_EQUAL_TESTS = {"==", "eq", "equalto", "!=", "ne"}
"""Tests that compare with `==`, which `SymbolicStr` answers."""

Instruction: TypeAlias = tuple[Callable[[Any], Any], int, bool | None]
"""(function, number of the value that it takes, outcome of a guard or None if it makes a new value)."""


class TraceAbortedError(BaseException):
    """The template does something with a content that cannot be recorded. Not an `Exception`, so that jinja2 does not
    catch it.
    """


class Record:
    """What a template did with the contents of one row: value i belongs to message i, later ones are made of these.

    Args:
        contents: the contents of the guiding row.
    """

    def __init__(self, contents: Sequence[str]) -> None:
        self.values: list[str] = list(contents)
        self.program: list[Instruction] = []
        self.whole = set(range(len(contents)))
        """Values that contain a whole content, except white space around it."""
        self._known: dict[tuple[Any, ...], Any] = {}

    def done(self, skeleton: str, name: str, *args: Any, guard: bool = False) -> Any:
        """The outcome for the guiding row, which becomes a guard; or the number of a new value. Recorded once."""
        if not _VALUE.fullmatch(skeleton):
            raise TraceAbortedError(f"`{name}` of a text that mixes contents with other text")
        require_literal(args)
        source = _number_of(skeleton)
        key = (name, args, source)
        if key not in self._known:
            function = operator.truth if name == "truth" else operator.methodcaller(name, *args)
            result: Any = function(self.values[source])
            self._known[key] = result
            self.program.append((function, source, result if guard else None))
            if not guard:
                self._known[key] = len(self.values)
                self.values.append(result)
                if source in self.whole and all(arg is None or arg.isspace() for arg in args):
                    self.whole.add(len(self.values) - 1)
        return self._known[key]

    def symbol(self, number: int, words: tuple[Word, ...]) -> "SymbolicStr":
        """The stand-in for a value."""
        if number > _MAX_VALUES:
            raise TraceAbortedError("the template makes too many values")
        return SymbolicStr(self, tracked(chr(_PLANE + number), words))


class SymbolicStr(str):
    """A content, or text with contents in it, as the template sees it. Every method that is not defined here aborts."""

    __slots__ = ("record", "skeleton")

    record: Record
    skeleton: str

    def __new__(cls, record: Record, skeleton: str) -> "SymbolicStr":
        self = super().__new__(cls, MARK)
        self.record = record
        self.skeleton = skeleton
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __bool__(self) -> bool:
        return bool(_VALUE.sub("", self.skeleton)) or self.record.done(self.skeleton, "truth", guard=True)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        return self.record.done(self.skeleton, "__eq__", other, guard=True)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __contains__(self, other: Any) -> bool:
        return bool(self.record.done(self.skeleton, "__contains__", other, guard=True))


def _method(name: str) -> Callable[..., Any]:
    def method(self: SymbolicStr, *args: Any, **_kwargs: Any) -> Any:
        if name in _INSPECTIONS:
            return self.record.done(self.skeleton, name, *args, guard=True)
        if name in _STRIPS:
            return self.record.symbol(self.record.done(self.skeleton, name, *args), words_of(self.skeleton))
        raise TraceAbortedError(f"`{name}` of a content cannot be traced")

    return method


_PYTHON_NEEDS = {
    *("__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__dir__"),
    *("__doc__", "__init_subclass__", "__subclasshook__", "__sizeof__", "__getstate__", "__getnewargs__"),
}
for _name in dir(str):
    # Defining __eq__ sets __hash__ to None.
    if (_name not in SymbolicStr.__dict__ or _name == "__hash__") and _name not in _PYTHON_NEEDS:
        setattr(SymbolicStr, _name, _method(_name))


def concat(pieces: Iterable[str]) -> str:
    """`"".join` that keeps symbolic strings."""
    parts, record = [], None
    for piece in pieces:
        if isinstance(piece, SymbolicStr):
            record = piece.record
            parts.append(piece.skeleton)
        elif type(piece) is str:
            require_literal(piece)
            parts.append(piece)
        else:
            raise TraceAbortedError("the template may join a content with escaped text")
    return "".join(parts) if record is None else SymbolicStr(record, join(parts))


def require_literal(value: Any) -> None:
    """Abort the trace unless a value certainly contains no message content."""
    left = [value]
    while left:
        value = left.pop()
        if type(value) is str and _PRIVATE.search(value):
            raise TraceAbortedError("a content passed through code that is not traced")
        if value is None or type(value) in (str, int, float, bool) or isinstance(value, Undefined):
            continue
        if type(value) in (list, tuple):
            left.extend(value)
        elif type(value) is dict:
            left.extend((*value, *value.values()))
        else:
            raise TraceAbortedError("a content may reach a function that is not traced")


class _InAsTest(NodeTransformer):
    """Rewrites `a in b` as `a is in(b)`, because a jinja2 test can be intercepted and Python's operator cannot."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - jinja2 asks for this name
        self.generic_visit(node)
        if not any(operand.op in ("in", "notin") for operand in node.ops):
            return node
        if len(node.ops) > 1:
            raise TraceAbortedError("the template chains `in` with other comparisons")
        test = nodes.Test(node.expr, "in", [node.ops[0].expr], [], None, None, lineno=node.lineno)
        return test if node.ops[0].op == "in" else nodes.Not(test, lineno=node.lineno)


def _is_in(value: Any, container: Any) -> bool:
    if isinstance(value, SymbolicStr) and isinstance(container, str):
        raise TraceAbortedError("a content is searched for in a text")  # which C code would answer
    return value in container


class _Message(dict[str, Any]):
    """A message whose keys cannot be listed: rows may have `role` and `content` in either order."""

    def _listed(self, *_args: Any) -> Any:
        raise TraceAbortedError("the keys of a message are listed")

    __iter__ = keys = items = values = copy = __reversed__ = __repr__ = __or__ = __ror__ = _listed


class _TracingEnvironment(Sandbox):
    """Records what a template does, and renders like the ordinary environment."""

    intercepted_binops = frozenset({"*", "**", "%"})
    concat = staticmethod(concat)
    record: Record
    """The record of the current trace."""
    blocks = 0
    """Number of generation blocks that the current rendering ran."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

        def generation(text: str) -> str:
            self.blocks += 1
            inner = text.skeleton if isinstance(text, SymbolicStr) else text
            return SymbolicStr(self.record, tracked(inner, (*words_of(inner), (0, len(inner), GENERATION))))

        self.generation = generation

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        filters: dict[str, Any] = self.filters  # jinja2's stubs declare a type that functions do not have
        tests: dict[str, Any] = self.tests
        for name in set(filters) - _FILTERS:
            filters[name] = _literal_only(filters[name], subjects=int(name == "trim"))
        for name in set(tests) - _EQUAL_TESTS:
            tests[name] = (_of_type if name in _TYPE_TESTS else _literal_only)(tests[name])
        tests["in"] = _is_in
        return super().compile(*args, **kwargs)

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        checks_itself = (
            isinstance(__callee, (Macro, LoopContext, BlockReference, DictMaker))
            or __callee is GuardedNamespace
            or isinstance(getattr(__callee, "__self__", None), (SymbolicStr, Extension, LoopContext, list, tuple, dict))
        )
        if not checks_itself:
            require_literal(args)
            # jinja2 passes the scope's variables to functions that ask for a context. There are none.
            inner = ("_loop_vars", "_block_vars")
            require_literal({key: value for key, value in kwargs.items() if key not in inner})
        return super().call(__context, __callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        require_literal((left, right))
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        require_literal(argument)
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        require_literal(attribute)
        if isinstance(obj, SymbolicStr):
            if attribute in _STRIPS or attribute in _INSPECTIONS:
                return getattr(obj, attribute)
            if hasattr(str, attribute):  # what the sandbox allows of a text is not decided here
                raise TraceAbortedError(f"`{attribute}` of a content cannot be traced")
            obj = ""  # a text has no such item; this is how templates test whether a content is a list of parts
        return super().getattr(obj, attribute)


def _literal_only(function: Callable[..., Any], subjects: int = 0) -> Callable[..., Any]:
    """Refuses contents in the arguments, except the first `subjects`."""
    free = subjects + hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        require_literal((args[free:], kwargs))
        return function(*args, **kwargs)

    return wrapper


def _of_type(test: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(test)
    def wrapper(*args: Any) -> bool:
        return test(*("" if isinstance(arg, SymbolicStr) else arg for arg in args))

    return wrapper


def _number_of(character: str) -> int:
    """The number of a value of a skeleton."""
    return ord(character) - _PLANE


class _Trace:
    """One path through a template: the guards that choose it, and a program that renders its rows.

    A path that cannot be traced also has guards, so that its rows are recognised.
    """

    def __init__(self, program: list[Instruction]) -> None:
        self.renders = False
        self._program = program

    def write(self, skeleton: str, runs: Runs, begin: int, values: int) -> None:
        """Set the text and runs of the path's rows: places in the skeleton become places in their texts.

        Args:
            values: how many values the program computes, with the contents.
        """
        self.renders, self._runs = True, runs
        # The text is cut into values, and literals that end where a run ends or the completion begins: so a row needs
        # only the sums of their lengths.
        stands = [at for at, one in enumerate(skeleton) if _VALUE.match(one)]
        cuts = sorted({0, begin, *runs.ends, len(skeleton), *stands, *(at + 1 for at in stands)})
        pieces = [skeleton[low:high] for low, high in pairwise(cuts)]
        self._literals = [piece for piece in pieces if not _VALUE.match(piece)]
        literals = count(values)
        self._order = _items([_number_of(one) if _VALUE.match(one) else next(literals) for one in pieces])
        self._ends = _items([cuts.index(end) for end in runs.ends])
        self._begin = cuts.index(begin)

    def values(self, contents: list[str]) -> list[str] | None:
        """The values that the program computes for a row, or None if a guard fails."""
        values = contents.copy()
        for function, argument, outcome in self._program:
            result = function(values[argument])
            if outcome is None:
                values.append(result)
            elif result is not outcome:
                return None
        return values

    def rendered(self, values: list[str], stopped: str) -> Rendered:
        """The rendering of a row whose guards hold.

        Args:
            stopped: see `require_size`.
        """
        pieces = self._order(values + self._literals)
        places = [0, *accumulate(map(len, pieces))]
        require_size(places[-1], stopped)
        _, kinds, turns, trains = self._runs
        return Rendered("".join(pieces), places[self._begin], Runs(self._ends(places), kinds, turns, trains), "")


def _items(places: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that returns the items of a sequence at these places, quickly if there are several."""
    return operator.itemgetter(*places) if len(places) > 1 else lambda values: tuple([values[at] for at in places])


class Traces:
    """The traces of one template.

    A path depends on the contents only through its guards: every row for which they hold has this path. So it does not
    matter which row was traced, or when.
    """

    def __init__(self, template: ChatTemplate, manner: TemplateProfile) -> None:
        self._template, self._manner = template, manner
        self._paths: dict[tuple[int, tuple[str, ...]], list[_Trace]] = {}
        """By number of messages in the prompt, and the roles of all messages."""
        self._environment = make_environment(_TracingEnvironment, template.name, template.date)
        self._compiled: Any = None
        tree = self._environment.parse(template.source)
        # Where escaping is on, C code does it, on the placeholder characters.
        if tree.find(nodes.EvalContextModifier) is None:
            with suppress(TraceAbortedError):
                self._compiled = compile_template(self._environment, _InAsTest().visit(tree), template.name)

    def rendered(self, messages: Messages, cut: int) -> Rendered | None:
        """The rendering of a row, or None if it cannot be traced.

        Args:
            cut: how many of the messages are the prompt.
        """
        if self._compiled is None or not messages:
            return None
        roles: list[str] = []
        contents: list[str] = []
        for message in messages:
            if type(message) is not dict or len(message) != 2:
                return None
            role, content = message.get("role"), message.get("content")
            if type(content) is not str or type(role) is not str:
                return None
            roles.append(role)
            contents.append(content)
        if self._manner.thoughts.in_any(contents):
            return None
        key = cut, tuple(roles)
        traces = self._paths.setdefault(key, [])
        for trace in traces:
            values = trace.values(contents)
            if values is not None:
                break
        else:
            if sum(map(len, self._paths.values())) >= MAX_TRACES:
                self._paths = {key: (traces := [])}
            elif len(traces) >= MAX_PATHS:
                traces.clear()
            record = Record(contents)
            trace, values = _Trace(record.program), record.values
            with suppress(TraceAbortedError, StoppedTemplateError, UnprovedError):
                # What holds for the skeleton holds for all rows. What fails for it may still hold for some rows.
                self._find(record, trace, roles, cut)
            traces.append(trace)
        return trace.rendered(values, self._template.stopped) if trace.renders else None

    def _find(self, record: Record, trace: _Trace, roles: list[str], cut: int) -> None:
        own = Owned()
        own.roles, own.flags = roles, [True] * len(roles)
        for index, role in enumerate(roles):
            symbol = record.symbol(index, ((0, 1, code_of(index)),))
            own.chat.append(_Message(role=role, content=symbol))
        text, words, blocks = self._render(record, own.chat, add_generation_prompt=False)
        heads: dict[int, str] = {}

        @cache
        def head(index: int) -> tuple[str, list[Word]]:
            heads[index], said, _ = self._render(record, own.chat[:index], add_generation_prompt=True)
            return heads[index], said

        chat = Chat(text, words, roles, cut, self._manner, head, blocks)
        turns, begin = locate(chat)
        for turn in turns:
            rest = heads.get(turn.message, "")[turn.begin :]
            if rest and (_VALUE.search(rest) or record.done(text[turn.begin], "startswith", rest, guard=True)):
                raise TraceAbortedError("where a turn begins depends on the contents")
        if cut < len(roles) and all(turn.message != cut for turn in turns):
            known = text.startswith(head(cut)[0]) if cut else roles[0] != ASSISTANT
            if not known:
                raise TraceAbortedError("where the completion begins depends on the contents")
        if any(end > begin and 0 <= code < code_of(cut) for _, end, code in words):
            raise TraceAbortedError("words of the prompt stand in the completion")
        said = Counter(code for _, _, code in words if code != GENERATION)
        whole = {code for low, _, code in words if code != GENERATION and _number_of(text[low]) in record.whole}
        if len(whole) < len(roles) or max(said.values()) > 1:
            raise TraceAbortedError("whether a content is written whole, and once, depends on the contents")
        runs, _ = painted(chat, turns, begin, own)
        trace.write(text, runs, begin, len(record.values))

    def _render(self, record: Record, chat: Messages, *, add_generation_prompt: bool) -> tuple[str, list[Word], int]:
        """The skeleton, its words, and how many generation blocks ran."""
        inputs = self._template.inputs(chat, None, add_generation_prompt=add_generation_prompt)
        self._environment.record = record
        self._environment.blocks = 0

        def render() -> Any:
            made = concat(self._compiled.root_render_func(self._compiled.new_context(inputs)))
            str.encode(made.skeleton if isinstance(made, SymbolicStr) else made)  # fails for half a character
            return made

        try:
            text = limited(render, self._template.stopped)
        except StoppedTemplateError:
            raise
        except Exception as error:  # jinja2 raises the same error again for the row
            raise TraceAbortedError(f"{type(error).__name__}: {error}") from error
        skeleton = text.skeleton if isinstance(text, SymbolicStr) else text
        return str.__str__(skeleton), sorted(words_of(skeleton)), self._environment.blocks
