"""The fast path of rendering: a template specialised to one pattern of roles.

A trace is made by rendering a conversation once with a `Symbol` for each content. A symbol answers what templates ask
of contents as an *ordinary* content would: it is not empty, has no white space around it, and contains none of the
texts that are looked for. These questions are noted. So if the contents of a row are ordinary, the row takes the same
path through the template, and its text is the join of the same literals and its contents. All other rows are rendered
by jinja2, and so are templates that do more with contents than most do.

The structure of that rendering's *skeleton*, a `TrackedStr` with one private character per content, is the same for all
contents. So turns are located in it as in any text, and spans end at the same places among the literals and contents of
every row.

A trace is correct because of `Symbol` and the environment below: jinja2 lets it see every call, attribute, filter,
test, `%`, `in` and join of a template, and it aborts if a content would reach code that cannot say what it asks, or if
the character of a content is in the text without its origin.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate, count, pairwise
from typing import Any, ClassVar

from jinja2 import nodes, pass_context
from jinja2.filters import do_trim
from jinja2.runtime import Context, Macro, Undefined
from jinja2.visitor import NodeTransformer

from ...schemas.errors import PacktrainError
from ...schemas.rows import Messages
from .chat import Chat, UnprovedError
from .chat_template import ChatTemplate
from .environment import GuardedNamespace
from .marked import ASSISTANT, IN_BOTH, Marker, Owned, TrackingEnvironment
from .paint import painted
from .profile import TemplateProfile
from .rendered import Rendered, Spans, solid
from .tracked_str import MESSAGE, TrackedStr, Word, code_of
from .turns import locate

MAX_TRACES = 4096
"""Maximum number of traces to keep; when it is reached, all are forgotten."""
MAX_MESSAGES = 1024
"""Longer conversations are not traced: few have the same roles."""
_PLANE = 0xF0000
"""In a skeleton, content n is the character with this code point plus n. It has no case and no width, so string methods
leave it as it is."""
_CONTENT = re.compile("[\U000f0000-\U000fffff]")
"""Matches a content in a skeleton."""
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")

_FILTERS = {
    *("capitalize", "count", "d", "default", "first", "last", "length", "list", "lower", "map", "reject"),
    *("rejectattr", "reverse", "select", "selectattr", "string", "upper"),
}
"""Filters that pass contents on, and inspect them at most through methods of `Symbol`."""
_TESTS = {
    *("boolean", "defined", "false", "float", "integer", "mapping", "none", "number", "string", "true", "undefined"),
    *("==", "eq", "equalto", "!=", "ne", "iterable"),
}
"""Tests of the type alone, which is a text's, and those that compare with `==`, which `Symbol` answers."""


class TraceAbortedError(BaseException):
    """The template does something that cannot be traced. Not an `Exception`, so that jinja2 does not catch it."""


class Ordinary:
    """What was asked of a content, and so must hold for that of every row of a trace."""

    def __init__(self) -> None:
        self.lacks: set[str] = set()
        """Texts that it may not contain."""
        self.trimmed = False
        """Whether it may not be empty, nor have white space around it."""

    def holds(self, content: str) -> bool:
        """Whether a content is ordinary."""
        trimmed = not self.trimmed or (content != "" and not content[0].isspace() and not content[-1].isspace())
        return trimmed and not any(text in content for text in self.lacks)


class Symbol(TrackedStr):
    """A content, or text with contents in it, as the template sees it. Every method that is not defined here aborts."""

    __slots__ = ()

    asked: ClassVar[Sequence[Ordinary]]
    """Of each content of the trace that is being made."""

    def _alone(self) -> Ordinary:
        """What is asked of the content that this is, and nothing else."""
        if str.__len__(self) > 1:
            raise TraceAbortedError("a content is not inspected alone")
        return self.asked[self._words[0][2] >> MESSAGE]

    def __bool__(self) -> bool:
        self.asked[self._words[0][2] >> MESSAGE].trimmed = True
        return True

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        return not self if type(other) is str and not other else other in self

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __contains__(self, text: Any) -> bool:
        if type(text) is not str or not text or _PRIVATE.search(text):
            raise TraceAbortedError("what is looked for is no literal")
        self._alone().lacks.add(text)
        return False

    def startswith(self, text: Any) -> bool:  # type: ignore[override]
        return text in self

    endswith = startswith  # type: ignore[assignment]

    def split(self, sep: Any = None, maxsplit: Any = -1) -> Any:
        return [] if sep in self else [self]

    def strip(self, chars: Any = None, /) -> str:
        if not (chars is None or (type(chars) is str and chars.isspace())):
            raise TraceAbortedError("more than white space is stripped")
        self._alone().trimmed = True
        return self

    lstrip = rstrip = strip


def _aborting(name: str) -> Callable[..., Any]:
    def abort(*_args: Any, **_kwargs: Any) -> Any:
        raise TraceAbortedError(f"`{name}` cannot be traced")

    return abort


_PYTHON_NEEDS = {
    *("__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__dir__"),
    *("__doc__", "__init_subclass__", "__subclasshook__", "__sizeof__", "__getstate__", "__getnewargs__"),
}
_KEPT = {"__str__", "__add__"}
"""What symbols do as other tracked strings."""
for _name in {*dir(str)} - _PYTHON_NEEDS - _KEPT:
    # Defining __eq__ sets __hash__ to None.
    if _name not in Symbol.__dict__ or _name == "__hash__":
        setattr(Symbol, _name, _aborting(_name))


def _require_literal(*values: Any) -> None:
    """Abort the trace unless values certainly contain no message content."""
    for value in values:
        if type(value) is str:
            if _PRIVATE.search(value):
                raise TraceAbortedError("a content passed through code that is not traced")
        elif not (value is None or type(value) in (int, float, bool, Undefined)):
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


class _TracingEnvironment(TrackingEnvironment):
    """Notes what a template does, and renders like the ordinary environment."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, name: str, date: str | None) -> None:
        super().__init__(name, date)
        filters: dict[str, Any] = self.filters
        tests: dict[str, Any] = self.tests
        for known, allowed in ((filters, _FILTERS), (tests, _TESTS)):
            # One that asks for a context is not called while a template is compiled.
            known |= {one: pass_context(_aborting(one)) for one in known.keys() - allowed}
        filters["trim"] = lambda text: do_trim(text)  # of white space alone
        iterable = tests["iterable"]
        tests |= {"in": _is_in, "iterable": lambda value: isinstance(value, Symbol) or iterable(value)}

    def parse(self, source: str, name: str | None = None, filename: str | None = None) -> nodes.Template:
        """See jinja2."""
        tree = super().parse(source, name, filename)
        if tree.find(nodes.EvalContextModifier) is not None:
            raise TraceAbortedError("where escaping is on, C code does it, on the characters of contents")
        return _InAsTest().visit(tree)  # type: ignore[no-any-return]

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        own = isinstance(__callee, Macro) or isinstance(getattr(__callee, "__self__", None), Symbol)
        if not own and __callee is not GuardedNamespace:
            # jinja2 passes the scope's variables to functions that ask for a context. There are none.
            _require_literal(*args, *(value for name, value in kwargs.items() if not name.startswith("_")))
        return super().call(__context, __callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _require_literal(left, right)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _require_literal(argument)
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Symbol) and not hasattr(str, attribute):
            obj = ""  # a text has no such item; this is how templates test whether a content is a list of parts
        return super().getattr(obj, attribute)


class _Trace:
    """One path through a template, and the contents that take it.

    Args:
        asked: of each content.
        skeleton, spans, begin: of the symbols' rendering. Places in it become places in the texts of rows.
    """

    def __init__(self, asked: Sequence[Ordinary], skeleton: str, spans: Spans, begin: int) -> None:
        self._asked = [(at, one) for at, one in enumerate(asked) if one.lacks or one.trimmed]
        self._spans = spans
        # The text is cut into contents, and literals that end where a span ends or the completion begins: so a row
        # needs only the sums of their lengths.
        stands = [found.start() for found in _CONTENT.finditer(skeleton)]
        cuts = sorted({0, begin, *spans.ends, len(skeleton), *stands, *(at + 1 for at in stands)})
        pieces = [skeleton[low:high] for low, high in pairwise(cuts)]
        self._literals = [piece for piece in pieces if not _CONTENT.match(piece)]
        literals = count(len(asked))
        self._order = [ord(one) - _PLANE if _CONTENT.match(one) else next(literals) for one in pieces]
        self._ends = [cuts.index(end) for end in spans.ends]
        self._begin = cuts.index(begin)

    def rendered(self, contents: list[str]) -> Rendered | None:
        """The rendering of a row; None if its contents take another path."""
        for at, one in self._asked:
            if not one.holds(contents[at]):
                return None
        said = contents + self._literals
        pieces = [said[at] for at in self._order]
        places = [0, *accumulate(map(len, pieces))]
        spans = self._spans._replace(ends=tuple([places[at] for at in self._ends]))
        return Rendered("".join(pieces), places[self._begin], spans if all(contents) else solid(spans), "")


class Traces:
    """The traces of one template, one for each number of messages in the prompt and roles of all messages. Templates
    with generation blocks have none.
    """

    def __init__(self, template: ChatTemplate, manner: TemplateProfile) -> None:
        self._manner = manner
        self._traces: dict[tuple[int, tuple[str, ...]], _Trace | None] = {}
        self._marker: Marker | None = None
        if not manner.generation:
            with suppress(TraceAbortedError):
                self._marker = Marker(template, _TracingEnvironment(template.name, template.date))

    def rendered(self, messages: Messages, cut: int) -> Rendered | None:
        """The rendering of a row, or None if it cannot be traced.

        Args:
            cut: how many of the messages are the prompt.
        """
        if self._marker is None or not 0 < len(messages) < MAX_MESSAGES:
            return None
        roles: list[str] = []
        contents: list[str] = []
        for message in messages:
            if len(message) != 2:
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
            with suppress(TraceAbortedError, PacktrainError, UnprovedError):
                # What fails for the skeleton may still hold for some rows.
                self._traces[key] = self._trace(self._marker, roles, cut)
        trace = self._traces[key]
        return trace.rendered(contents) if trace is not None else None

    def _trace(self, marker: Marker, roles: list[str], cut: int) -> _Trace:
        asked = Symbol.asked = [Ordinary() for _ in roles]
        symbols = [Symbol(chr(_PLANE + at), ((0, 1, code_of(at)),)) for at in range(len(roles))]
        chat: Messages = [_Message(role=role, content=symbol) for role, symbol in zip(roles, symbols, strict=True)]
        heads: dict[int, str] = {}

        @cache
        def render(indices: tuple[int, ...], prompted: bool) -> tuple[str, list[Word]]:
            if prompted and len(indices) < len(roles) and roles[len(indices)] != ASSISTANT:
                raise TraceAbortedError("where the completion begins may depend on the contents")
            text, words = marker.render([chat[index] for index in indices], None, add_generation_prompt=prompted)
            if prompted:
                heads[len(indices)] = text
            return text, words

        def some(indices: Sequence[int], prompted: bool) -> tuple[str, list[Word]]:
            return render(tuple(indices), prompted)

        made = marker.render(chat, None)
        owned = Owned(chat, roles, [1.0] * len(roles))
        turns, begin = locate(located := Chat(owned, *made, cut, self._manner, some, known=False))
        text, words = made
        for turn in turns:
            if rest := heads.get(turn.message, "")[turn.begin :]:
                if _PRIVATE.search(rest) or text[turn.begin : turn.begin + 1] != chr(_PLANE + turn.message):
                    raise TraceAbortedError("where a turn begins depends on the contents")
                asked[turn.message].lacks.add(rest)  # a turn that begins with it begins after it
        if any(end > begin and code < code_of(cut) for _, end, code in words):
            raise TraceAbortedError("words of the prompt stand in the completion")
        found = sorted(code >> MESSAGE for _, _, code in words)
        if found != list(range(len(roles))) or len(found) != len(_PRIVATE.findall(text)):
            raise TraceAbortedError("not every content is written, and once")
        return _Trace(asked, text, painted(located, turns, begin), begin)
