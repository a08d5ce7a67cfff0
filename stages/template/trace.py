"""The fast path of rendering: a template specialised to one pattern of roles.

A trace is made by rendering a conversation once with a `Symbol` for each content. A symbol answers what templates ask
of contents as an *ordinary* content would: it is not empty, has no white space around it, and contains none of the
texts that are looked for. These questions are noted. So if the contents of a row are ordinary, the row takes the same
path through the template, and its text is the join of the same literals and its contents. All other rows are rendered
by jinja2, and so are templates that do more with contents than most do.

The structure of that rendering's *skeleton*, a `TrackedStr` with one private character per content, is the same for all
contents. So turns are located in it as in any text, and runs end at the same places among the literals and contents of
every row.

A trace is correct because of `Symbol` and the environment below: jinja2 lets it see every call, attribute, filter,
test, `%`, `in` and join of a template, and it aborts if a content would reach code that cannot say what it asks. For
such code, every symbol is the single character MARK; if that reaches the text, `concat` finds it.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, wraps
from itertools import accumulate, count, pairwise
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context, Macro, Undefined
from jinja2.visitor import NodeTransformer

from ...schemas.errors import StoppedTemplateError
from ...schemas.rows import Messages
from .assistant_turns import ASSISTANT, Chat, TemplateProfile, UnprovedError
from .chat_template import ChatTemplate
from .environment import GuardedNamespace, Sandbox, compile_template, limited, make_environment, require_size
from .locate import locate
from .owned import Owned
from .paint import painted
from .rendered import Rendered, Runs
from .thought_style import IN_BOTH
from .tracked_str import MESSAGE, Word, code_of, join, owned, words_of

MAX_TRACES = 4096
"""Maximum number of traces to keep; when it is reached, all are forgotten."""
MARK = "\U0010fffd"
"""A private-use character without case, width or meaning: string methods leave it as it is."""
_PLANE = 0xF0000
"""In a skeleton, content n is the character with this code point plus n."""
_MAX_CONTENTS = 0xFFF0
_CONTENT = re.compile("[\U000f0000-\U000ffff0]")
"""Matches a content in a skeleton."""
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")

_METHODS = frozenset({"strip", "lstrip", "rstrip", "startswith", "endswith", "split"})
"""Methods of contents that can be traced."""
_FILTERS = {
    *("count", "d", "default", "first", "last", "length", "list", "map", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "string"),
}
"""Filters that pass contents on, and inspect them at most through methods of `Symbol`."""
_OPEN_TESTS = {
    *("boolean", "defined", "false", "float", "integer", "mapping", "none", "number", "string", "true", "undefined"),
    *("==", "eq", "equalto", "!=", "ne"),
}
"""Tests of the type alone, which is a text's, and those that compare with `==`, which `Symbol` answers."""


class TraceAbortedError(BaseException):
    """The template does something with a content that cannot be traced. Not an `Exception`, so that jinja2 does not
    catch it.
    """


class Ordinary:
    """What was asked of a content, and so must hold for that of every row of a trace."""

    def __init__(self) -> None:
        self.lacks: set[str] = set()
        """Texts that it may not contain."""
        self.trimmed = False
        """Whether it must not be empty, and have no white space around it."""

    def holds(self, content: str) -> bool:
        """Whether a content is ordinary."""
        if self.trimmed and (not content or content[0].isspace() or content[-1].isspace()):
            return False
        for text in self.lacks:  # noqa: SIM110 - asked for every row: `any` with a generator takes twice as long
            if text in content:
                return False
        return True


class Symbol(str):
    """A content, or text with contents in it, as the template sees it. Every method that is not defined here aborts."""

    __slots__ = ("ordinary", "skeleton")

    ordinary: Ordinary
    skeleton: str

    def __new__(cls, ordinary: Ordinary, skeleton: str) -> "Symbol":
        self = super().__new__(cls, MARK)
        self.ordinary, self.skeleton = ordinary, skeleton
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __bool__(self) -> bool:
        self.ordinary.trimmed = True
        return True

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        return not self if type(other) is str and not other else other in self

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __contains__(self, text: Any) -> bool:
        if len(self.skeleton) > 1 or type(text) is not str or not text or _PRIVATE.search(text):
            raise TraceAbortedError("what is looked for is no literal, or not looked for in a content alone")
        self.ordinary.lacks.add(text)
        return False

    def startswith(self, text: Any) -> bool:  # type: ignore[override]
        return text in self

    def endswith(self, text: Any) -> bool:  # type: ignore[override]
        return text in self

    def split(self, sep: Any = None, maxsplit: Any = -1) -> Any:
        return [] if sep in self else [self]

    def strip(self, chars: Any = None) -> str:
        if len(self.skeleton) > 1 or not (chars is None or (type(chars) is str and chars.isspace())):
            raise TraceAbortedError("more than white space is stripped, or not from a content alone")
        self.ordinary.trimmed = True
        return self

    lstrip = rstrip = strip


def _aborting(name: str) -> Callable[..., Any]:
    def method(*_args: Any, **_kwargs: Any) -> Any:
        raise TraceAbortedError(f"`{name}` of a content cannot be traced")

    return method


_PYTHON_NEEDS = {
    *("__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__dir__"),
    *("__doc__", "__init_subclass__", "__subclasshook__", "__sizeof__", "__getstate__", "__getnewargs__"),
}
for _name in dir(str):
    # Defining __eq__ sets __hash__ to None.
    if (_name not in Symbol.__dict__ or _name == "__hash__") and _name not in _PYTHON_NEEDS:
        setattr(Symbol, _name, _aborting(_name))


def concat(pieces: Iterable[str]) -> str:
    """`"".join` that keeps symbols."""
    parts, ordinary = [], None
    for piece in pieces:
        if isinstance(piece, Symbol):
            ordinary = piece.ordinary
            parts.append(piece.skeleton)
        else:
            require_literal(piece)
            parts.append(piece)
    return "".join(parts) if ordinary is None else Symbol(ordinary, join(parts))


def require_literal(value: Any) -> None:
    """Abort the trace unless a value certainly contains no message content."""
    if type(value) is str and _PRIVATE.search(value):
        raise TraceAbortedError("a content passed through code that is not traced")
    if type(value) in (list, tuple):
        for item in value:
            require_literal(item)
    elif type(value) is dict:
        require_literal((*value, *value.values()))
    elif not (value is None or type(value) in (str, int, float, bool) or isinstance(value, Undefined)):
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
    if isinstance(value, Symbol) and isinstance(container, str):
        raise TraceAbortedError("a content is searched for in a text")  # which C code would answer
    return value in container


class _Message(dict[str, Any]):
    """A message whose keys cannot be listed: rows may have `role` and `content` in either order."""

    __iter__ = keys = items = values = copy = __reversed__ = __repr__ = __or__ = __ror__ = _aborting("keys")


class _TracingEnvironment(Sandbox):
    """Notes what a template does, and renders like the ordinary environment."""

    intercepted_binops = frozenset({"*", "**", "%"})
    concat = staticmethod(concat)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        filters: dict[str, Any] = self.filters  # jinja2's stubs declare a type that functions do not have
        tests: dict[str, Any] = self.tests
        for name in set(filters) - _FILTERS:
            filters[name] = _literal_only(filters[name], subjects=int(name == "trim"))
        for name in set(tests) - _OPEN_TESTS:
            tests[name] = _literal_only(tests[name])
        for name in ("iterable", "sequence"):
            tests[name] = _of_texts(tests[name])
        tests["in"] = _is_in
        return super().compile(*args, **kwargs)

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        own = isinstance(__callee, Macro) or isinstance(getattr(__callee, "__self__", None), Symbol)
        if not own and __callee is not GuardedNamespace:
            # jinja2 passes the scope's variables to functions that ask for a context. There are none.
            require_literal([*args, *(value for name, value in kwargs.items() if not name.startswith("_"))])
        return super().call(__context, __callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        require_literal((left, right))
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        require_literal(argument)
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        require_literal(attribute)
        if isinstance(obj, Symbol):
            if attribute in _METHODS:
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


def _of_texts(test: Callable[..., bool]) -> Callable[..., bool]:
    return lambda value: test("" if isinstance(value, Symbol) else value)


class _Trace:
    """One path through a template, and the contents that take it.

    Args:
        asked: of each content.
        skeleton, runs, begin: of the symbols' rendering. Places in it become places in the texts of rows.
    """

    def __init__(self, asked: Sequence[Ordinary], skeleton: str, runs: Runs, begin: int) -> None:
        self._asked = [(at, one) for at, one in enumerate(asked) if one.lacks or one.trimmed]
        self._runs = runs
        # The text is cut into contents, and literals that end where a run ends or the completion begins: so a row needs
        # only the sums of their lengths.
        stands = [found.start() for found in _CONTENT.finditer(skeleton)]
        cuts = sorted({0, begin, *runs.ends, len(skeleton), *stands, *(at + 1 for at in stands)})
        pieces = [skeleton[low:high] for low, high in pairwise(cuts)]
        self._literals = [piece for piece in pieces if not _CONTENT.match(piece)]
        literals = count(len(asked))
        self._order = _items([ord(one) - _PLANE if _CONTENT.match(one) else next(literals) for one in pieces])
        self._ends = _items([cuts.index(end) for end in runs.ends])
        self._begin = cuts.index(begin)

    def rendered(self, contents: list[str], stopped: str) -> Rendered | None:
        """The rendering of a row; None if its contents take another path.

        Args:
            stopped: see `require_size`.
        """
        for at, one in self._asked:
            if not one.holds(contents[at]):
                return None
        pieces = self._order(contents + self._literals)
        places = [0, *accumulate(map(len, pieces))]
        require_size(places[-1], stopped)
        return Rendered("".join(pieces), places[self._begin], self._runs._replace(ends=self._ends(places)), "")


def _items(places: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that returns the items of a sequence at these places, quickly if there are several."""
    return operator.itemgetter(*places) if len(places) > 1 else lambda values: tuple([values[at] for at in places])


class Traces:
    """The traces of one template, one for each number of messages in the prompt and roles of all messages. Templates
    with generation blocks have none.
    """

    def __init__(self, template: ChatTemplate, manner: TemplateProfile) -> None:
        self._template, self._manner = template, manner
        self._traces: dict[tuple[int, tuple[str, ...]], _Trace | None] = {}
        self._environment = make_environment(_TracingEnvironment, template.name, template.date)
        self._compiled: Any = None
        tree = self._environment.parse(template.source)
        # Where escaping is on, C code does it, on the placeholder characters.
        if not manner.generation and tree.find(nodes.EvalContextModifier) is None:
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
            if type(content) is not str or type(role) is not str or IN_BOTH in content:
                return None
            roles.append(role)
            contents.append(content)
        key = cut, tuple(roles)
        if key not in self._traces:
            if len(self._traces) >= MAX_TRACES:
                self._traces.clear()
            self._traces[key] = None
            with suppress(TraceAbortedError, StoppedTemplateError, UnprovedError):
                # What fails for the skeleton may still hold for some rows.
                self._traces[key] = self._trace(roles, cut)
        trace = self._traces[key]
        return trace.rendered(contents, self._template.stopped) if trace is not None else None

    def _trace(self, roles: list[str], cut: int) -> _Trace:
        if len(roles) > _MAX_CONTENTS:
            raise TraceAbortedError("there are too many messages")
        asked, own = [Ordinary() for _ in roles], Owned()
        own.roles, own.flags = roles, [True] * len(roles)
        for index, (role, ordinary) in enumerate(zip(roles, asked, strict=True)):
            symbol = Symbol(ordinary, owned(chr(_PLANE + index), code_of(index)))
            own.chat.append(_Message(role=role, content=symbol))
        text, words = self._render(own.chat, add_generation_prompt=False)
        heads: dict[int, str] = {}

        @cache
        def head(index: int) -> tuple[str, list[Word]]:
            heads[index], said = self._render(own.chat[:index], add_generation_prompt=True)
            return heads[index], said

        chat = Chat(text, words, roles, cut, self._manner, head)
        turns, begin = locate(chat)
        for turn in turns:
            if rest := heads.get(turn.message, "")[turn.begin :]:
                if _PRIVATE.search(rest) or text[turn.begin : turn.begin + 1] != chr(_PLANE + turn.message):
                    raise TraceAbortedError("where a turn begins depends on the contents")
                asked[turn.message].lacks.add(rest)  # a turn that begins with it begins after it
        located = cut == len(roles) or any(turn.message == cut for turn in turns)
        if not (located or (text.startswith(head(cut)[0]) if cut else roles[0] != ASSISTANT)):
            raise TraceAbortedError("where the completion begins depends on the contents")
        if any(end > begin and code < code_of(cut) for _, end, code in words):
            raise TraceAbortedError("words of the prompt stand in the completion")
        if sorted(code >> MESSAGE for _, _, code in words) != list(range(len(roles))):
            raise TraceAbortedError("not every content is written, and once")
        return _Trace(asked, text, painted(chat, turns, begin, own), begin)

    def _render(self, chat: Messages, *, add_generation_prompt: bool) -> tuple[str, list[Word]]:
        """The skeleton and its words."""
        inputs = self._template.inputs(chat, None, add_generation_prompt=add_generation_prompt)

        def render() -> Any:
            made = concat(self._compiled.root_render_func(self._compiled.new_context(inputs)))
            made = made.skeleton if isinstance(made, Symbol) else made
            str.encode(made)  # fails for half a character
            return made

        try:
            skeleton = limited(render, self._template.stopped)
        except StoppedTemplateError:
            raise
        except Exception as error:  # jinja2 raises the same error again for the row
            raise TraceAbortedError(f"{type(error).__name__}: {error}") from error
        return str.__str__(skeleton), sorted(words_of(skeleton))
