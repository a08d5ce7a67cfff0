"""Placeholders for contents, and the environment in which a template that renders them is traced.

A `ContentProxy` answers what templates ask of contents as an *ordinary* content would: it is not empty, has no white
space around it, and contains none of the texts that are looked for. Each question is noted in the content's guard. For
`{% if '/think' in m.content %}`, the proxy answers False, and its guard gets "/think" as a text that is absent.

What must not happen is that a content decides something unnoticed. So jinja2 lets the environment below see every call,
attribute, filter, test, `%`, `in` and join of a template, and it aborts the trace if a content would reach code that
cannot say what it asks.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from jinja2 import nodes, pass_context
from jinja2.filters import do_trim
from jinja2.runtime import Context, Macro, Undefined
from jinja2.visitor import NodeTransformer

from ..template.sandbox import GuardedNamespace
from ..template.tracked_str import SourceSpan, TrackedStr, origin_of
from ..template.tracked_template import TrackingEnvironment

FIRST_PLACEHOLDER = 0xF0000
"""The placeholder of content n is the character with this code point plus n, of a plane for private use. It has no case
and no width, so string methods leave it as it is."""
PLACEHOLDER = re.compile("[\U000f0000-\U000fffff]")
"""Matches the placeholder of a content."""
PRIVATE_CHARACTER = re.compile("[\U000f0000-\U0010ffff]")
"""Matches placeholders, and private characters of the template, which could be taken for them."""

_TRACED_FILTERS = {
    *("capitalize", "count", "d", "default", "first", "last", "length", "list", "lower", "map", "reject"),
    *("rejectattr", "reverse", "select", "selectattr", "string", "upper"),
}
"""Filters that pass contents on, and inspect them at most through methods of `ContentProxy`."""
_TRACED_TESTS = {
    *("boolean", "defined", "false", "float", "integer", "mapping", "none", "number", "string", "true", "undefined"),
    *("==", "eq", "equalto", "!=", "ne", "iterable"),
}
"""Tests of the type alone, which is a text's, and those that compare with `==`, which `ContentProxy` answers."""


class TraceAbortedError(BaseException):
    """The template does something that cannot be traced. Not an `Exception`, so that jinja2 does not catch it."""


class ContentGuard:
    """What the template asked of a placeholder, and so must hold for the content there in every row of a trace."""

    def __init__(self) -> None:
        self.absent_texts: set[str] = set()
        """Texts that it may not contain."""
        self.is_stripped = False
        """Whether it may not be empty, nor have white space around it."""

    @property
    def has_conditions(self) -> bool:
        """Whether anything was asked."""
        return bool(self.absent_texts) or self.is_stripped

    def accepts(self, content: str) -> bool:
        """Whether a content gives the same answers as the placeholder did."""
        if self.is_stripped and (content == "" or content[0].isspace() or content[-1].isspace()):
            return False
        return not any(text in content for text in self.absent_texts)


class ContentProxy(TrackedStr):
    """A content, or text with contents in it, as the template sees it. Every method that is not defined here aborts."""

    __slots__ = ()

    guards: ClassVar[Sequence[ContentGuard]]
    """One for each content of the trace that is being made."""

    @classmethod
    def of_message(cls, message: int) -> "ContentProxy":
        """The proxy of a message's content."""
        span = SourceSpan(begin=0, end=1, origin=origin_of(message))  # the placeholder is one character
        return cls(chr(FIRST_PLACEHOLDER + message), (span,))

    def _guard(self) -> ContentGuard:
        """The guard of the first content in this text."""
        return self.guards[self._spans[0].message]

    def _guard_alone(self) -> ContentGuard:
        """The guard of the content that is all of this text.

        Raises:
            TraceAbortedError: the text has something beside one placeholder, which is one character.
        """
        if str.__len__(self) > 1:
            raise TraceAbortedError("a content is not inspected alone")
        return self._guard()

    def __bool__(self) -> bool:
        """`{% if m.content %}` is true, for a content that is not empty."""
        # A text of several contents is not empty if the first is not. A stripped content is not empty: nearly all
        # contents are stripped, so no weaker condition is kept apart.
        self._guard().is_stripped = True
        return True

    def __eq__(self, right: object) -> Any:
        """`m.content == "x"` is false, for a content that does not contain "x"."""
        if not isinstance(right, str):
            return NotImplemented
        # `m.content == ""` asks whether the content is empty, which `not` notes. Only for a plain text on the right: of
        # another content there, `not` would note a question, too.
        if type(right) is str and not right:
            return not self
        # A content that does not contain a text does not equal it, either. `in` notes that, and answers False.
        return right in self

    def __ne__(self, right: object) -> Any:
        return not self == right

    def __contains__(self, text: Any) -> bool:
        """`"x" in m.content` is false, for a content that does not contain "x"."""
        if type(text) is not str or not text or PRIVATE_CHARACTER.search(text):
            raise TraceAbortedError("what is looked for is no literal")
        self._guard_alone().absent_texts.add(text)
        return False

    def startswith(self, text: Any) -> bool:  # type: ignore[override]
        """False, for a content that does not contain the text anywhere."""
        return text in self

    endswith = startswith  # type: ignore[assignment]

    def split(self, sep: Any = None, maxsplit: Any = -1) -> Any:
        # `in` notes that the separator is absent, and always answers False: the content is the only part.
        return [] if sep in self else [self]

    def strip(self, chars: Any = None, /) -> str:
        """The content itself, for one without white space around it."""
        if not (chars is None or (type(chars) is str and chars.isspace())):
            raise TraceAbortedError("more than white space is stripped")
        self._guard_alone().is_stripped = True
        return self

    lstrip = rstrip = strip


def aborting(name: str) -> Callable[..., Any]:
    """A function that aborts the trace."""

    def abort(*_args: Any, **_kwargs: Any) -> Any:
        raise TraceAbortedError(f"`{name}` cannot be traced")

    return abort


# Other methods of `str`, such as `m.content.isdigit()`, would answer from the placeholder's own character. They abort
# the trace, but for those without which Python makes no object.
_PYTHON_NEEDS = {
    *("__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__dir__"),
    *("__doc__", "__init_subclass__", "__subclasshook__", "__sizeof__", "__getstate__", "__getnewargs__"),
}
_INHERITED = {"__str__", "__add__"}
"""What proxies do as other tracked strings."""
for _name in {*dir(str)} - _PYTHON_NEEDS - _INHERITED:
    # What the class defines stays, but for `__hash__`: Python has set it to None, because the class defines `__eq__`.
    if _name not in ContentProxy.__dict__ or _name == "__hash__":
        setattr(ContentProxy, _name, aborting(_name))


def _require_literal(*values: Any) -> None:
    """Abort the trace unless values certainly contain no message content."""
    for value in values:
        if type(value) is str:
            if PRIVATE_CHARACTER.search(value):
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
        # jinja2's fields of a test: what is tested, its name, its arguments; and three kinds of further arguments, of
        # which there are none.
        test = nodes.Test(node.expr, "in", [node.ops[0].expr], [], None, None, lineno=node.lineno)
        return test if node.ops[0].op == "in" else nodes.Not(test, lineno=node.lineno)


def _is_in(value: Any, container: Any) -> bool:
    """The test `in`, for `"x" in m.content` and `m.role in ["user", "tool"]`."""
    if isinstance(value, ContentProxy) and isinstance(container, str):
        raise TraceAbortedError("a content is searched for in a text")  # `str.__contains__` would answer unnoticed
    return value in container


class TracingEnvironment(TrackingEnvironment):
    """Aborts at what cannot be traced, and renders like the ordinary environment.

    Raises:
        TraceAbortedError: in `parse` and while it renders.
    """

    # jinja2 hands these operators to `call_binop`. `+` and `~` keep placeholders, and texts have no others.
    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, name: str, date: str | None) -> None:
        super().__init__(name, date)
        filters: dict[str, Any] = self.filters
        tests: dict[str, Any] = self.tests
        # With `pass_context`, because jinja2 calls such a filter or test only when it renders, not while it compiles.
        filters |= {name: pass_context(aborting(name)) for name in filters.keys() - _TRACED_FILTERS}
        filters["trim"] = lambda text: do_trim(text)  # of white space alone
        is_iterable = tests["iterable"]
        tests |= {name: pass_context(aborting(name)) for name in tests.keys() - _TRACED_TESTS}
        tests["in"] = _is_in
        # jinja2's own test would call `iter`, at which a proxy aborts.
        tests["iterable"] = lambda value: isinstance(value, ContentProxy) or is_iterable(value)

    def parse(self, source: str, name: str | None = None, filename: str | None = None) -> nodes.Template:
        """The template's syntax tree, in which `in` is a test."""
        tree = super().parse(source, name, filename)
        if tree.find(nodes.EvalContextModifier) is not None:
            raise TraceAbortedError("where escaping is on, C code does it, on the characters of contents")
        return _InAsTest().visit(tree)  # type: ignore[no-any-return]

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Called by jinja2 for each call in a template. A macro of the template, or a method of a content, may get
        contents; another function may not.
        """
        is_traced = isinstance(__callee, Macro) or isinstance(getattr(__callee, "__self__", None), ContentProxy)
        if not is_traced and __callee is not GuardedNamespace:
            # Arguments named with an underscore are jinja2's: the scope's variables, for functions that ask for a
            # context. None of these functions does.
            _require_literal(*args, *(value for name, value in kwargs.items() if not name.startswith("_")))
        return super().call(__context, __callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Called by jinja2 for the operators above. `"%s" % content` would make a plain text of a content, and
        `content * 2` write it twice.
        """
        _require_literal(left, right)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Called by jinja2 for `obj[argument]`. `names[content]` would decide by a content which item it gives."""
        _require_literal(argument)
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Called by jinja2 for `obj.attribute`. Templates test by `content.parts is defined` whether a content is a
        list; no text has such an attribute.
        """
        if isinstance(obj, ContentProxy) and not hasattr(str, attribute):
            obj = ""  # any text gives `undefined`; for that, jinja2 would ask the proxy for an item, which aborts
        return super().getattr(obj, attribute)
