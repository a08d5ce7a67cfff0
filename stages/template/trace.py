"""The fast path of rendering: a template specialised to one pattern of roles.

A trace is made by rendering a row once with a `SymbolicStr` for each content. It is a short program: guards that a row
must answer like the guiding row, operations on contents, and the pieces of the text. A row whose guards hold takes the
same path through the template, so its text is the join of these pieces.

The structure of that rendering's *skeleton*, with one character per value, is the same for all contents. So turns are
located in it as in any text, and runs end at the same places among the literals and values of every row.

A trace is correct because of `SymbolicStr` and the environment below: jinja2 lets it see every call, attribute, filter,
test, `%`, `in` and join of a template, and it aborts if a content would reach code that cannot report what it inspects.
"""

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, wraps
from itertools import accumulate, count, pairwise
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.visitor import NodeTransformer

from ...schemas.rows import Messages
from .assistant_turns import ASSISTANT, GENERATION, TemplateProfile, UnprovedError, Word, code_of
from .chat_template import ChatTemplate
from .environment import (
    DictMaker,
    GuardedNamespace,
    Sandbox,
    TemplateLimitError,
    compile_template,
    limited,
    make_environment,
    require_size,
)
from .rendered import Rendered, Runs, locate, runs_of
from .symbolic_str import (
    UNDERSTOOD,
    VALUE,
    Instruction,
    Record,
    SymbolicParts,
    SymbolicStr,
    TraceAbortedError,
    concat,
    number_of,
    require_literal,
    split_skeleton,
)
from .tracked_str import tracked, words_of
from .turn_parts import divided

# Filters that pass contents on, and inspect them at most through methods of SymbolicStr.
_FILTERS_ANY = frozenset(
    {
        *("count", "d", "default", "first", "last", "length", "list", "map", "reject", "rejectattr", "reverse"),
        *("select", "selectattr", "string"),
    }
)
# Filters that call one method of their subject; the other arguments must be literal.
_FILTERS_METHOD = frozenset({"capitalize", "lower", "replace", "trim", "upper"})
# Tests of the type alone, which is `str` for every content of a pattern.
_TESTS_TYPE = frozenset(
    {
        *("boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable", "mapping", "none"),
        *("number", "sequence", "string", "true", "undefined"),
    }
)
# Tests that compare with `==`, which SymbolicStr answers.
_TESTS_EQUAL = frozenset({"==", "eq", "equalto", "!=", "ne"})


class Trace:
    """One path through a template: the guards that choose it, and a program that renders its rows.

    A path that cannot be traced also has guards, so that its rows are recognised.

    Attributes:
        why_not: why a trace cannot render rows of this path, or "".
        complete: whether the text contains everything in the rows, whatever their contents.
        parts: whether a turn of these rows may have a thought although no content has a tag of one.
    """

    def __init__(self, program: list[Instruction], why_not: str = "") -> None:
        self.why_not = why_not
        self.complete = False
        self.parts = False
        self._program = program

    def write(
        self,
        skeleton: str,
        runs: Runs,
        begin: int,
        words: Sequence[Word],
        values: int,
        *,
        complete: bool,
        parts: bool,
    ) -> None:
        """Set the text and runs of the path's rows: places in the skeleton become places in their texts.

        Args:
            values: how many values the program computes, with the contents.
            complete, parts: see the class.
        """
        self.complete = complete
        self.parts = parts
        self._numbers = split_skeleton(skeleton)[1]
        places = [0, *accumulate(1 if VALUE.match(one) else 0 for one in skeleton)]
        self._runs = runs
        # The text is cut into values, and literals that end where a run ends or the completion begins: so a row needs
        # only the sums of their lengths.
        stands = [at for at, one in enumerate(skeleton) if VALUE.match(one)]
        cuts = sorted({0, begin, *runs.ends, len(skeleton), *stands, *(at + 1 for at in stands)})
        pieces = [skeleton[low:high] for low, high in pairwise(cuts)]
        self._literals = [piece for piece in pieces if not VALUE.match(piece)]
        literals = count(values)
        self._order = _items([number_of(one) if VALUE.match(one) else next(literals) for one in pieces])
        self._ends = _items([cuts.index(end) for end in runs.ends])
        self._begin = cuts.index(begin)
        self._words = [(low - places[low], places[low], places[high], code) for low, high, code in words]

    def values(self, contents: list[str]) -> list[str] | None:
        """The values that the program computes for a row, or None if a guard fails.

        Raises:
            TemplateLimitError: a text would be too long. `rendered` raises it too.
        """
        values = contents.copy()
        for function, argument, outcome in self._program:
            result = function(values[argument])
            if outcome is None:
                values.append(result)
            elif result is not outcome:
                return None
        return values

    def rendered(self, values: list[str]) -> Rendered:
        """Return the rendering of a row whose guards hold."""
        pieces = self._order(values + self._literals)
        places = [0, *accumulate(map(len, pieces))]
        require_size(places[-1])
        _, kinds, turns, trains = self._runs
        return Rendered("".join(pieces), places[self._begin], Runs(self._ends(places), kinds, turns, trains), "")

    def words(self, values: list[str]) -> list[Word]:
        """Return the words of the rendering of a row whose guards hold."""
        sums = [0, *accumulate(len(values[number]) for number in self._numbers)]
        return [(written + sums[low], written + sums[high], code) for written, low, high, code in self._words]


class Tracer:
    """Makes traces of one template.

    Raises:
        TraceAbortedError: the template uses something that cannot be traced.
    """

    def __init__(self, template: ChatTemplate, manner: TemplateProfile) -> None:
        self._template = template
        self._manner = manner
        self._environment = make_environment(_TracingEnvironment, template.name, template.date)
        tree = self._environment.parse(template.source)
        # C code does the escaping, on the placeholder characters.
        if tree.find(nodes.EvalContextModifier):
            raise TraceAbortedError("the template switches escaping")
        self._compiled = compile_template(self._environment, _InAsTest().visit(tree))

    def trace(self, roles: tuple[str, ...], contents: list[str], prompt: int) -> Trace:
        """Trace a row and return its path.

        The path depends on the contents only through its guards: every row for which they hold has this path. So it
        does not matter which row was traced, or when. If the path cannot be traced, or the template refuses the row,
        the path renders nothing.

        Args:
            roles: one per message.
            contents: one per message, exact `str`.
            prompt: how many of the messages are the prompt.

        Raises:
            TemplateLimitError: the template was stopped; other rows may still be fine.
        """
        record = Record(contents)
        trace = Trace(record.program)
        try:
            self._find(record, trace, roles, prompt)
        except TraceAbortedError as error:
            trace.why_not = str(error)
        except UnprovedError as error:
            # What holds for the skeleton holds for all rows. What fails for the skeleton may still hold for some rows.
            trace.why_not = error.reason
        return trace

    def _find(self, record: Record, trace: Trace, roles: tuple[str, ...], prompt: int) -> None:
        chat: Messages = [
            _Message(role=role, content=record.symbol(index, code_of(index))) for index, role in enumerate(roles)
        ]
        text, words, blocks = self._render(record, chat, add_generation_prompt=False)

        @cache
        def head(index: int) -> tuple[str, list[Word]]:
            return self._render(record, chat[:index], add_generation_prompt=True)[:2]

        def cut(place: int, rest: str) -> None:
            """The words at `place` begin a turn, unless they continue as the generation prompt does."""
            if VALUE.search(rest) or record.inspect(text[place], "startswith", rest):
                raise TraceAbortedError("where a turn begins depends on the contents")

        turns, begin = locate(text, words, roles, prompt, self._manner, blocks, head, cut=cut)
        if prompt < len(roles) and all(turn.message != prompt for turn in turns):
            known = text.startswith(head(prompt)[0]) if prompt else roles[0] != ASSISTANT
            if not known:
                raise TraceAbortedError("where the completion begins depends on the contents")
        if any(end > begin and 0 <= code < code_of(prompt) for _, end, code in words):
            raise TraceAbortedError("words of the prompt stand in the completion")
        runs = runs_of(turns, begin, len(text), prompt, roles, [True] * len(roles), ())
        sure = {code for low, _, code in words if code != GENERATION and number_of(text[low]) in record.whole}
        sure -= {code for code, times in Counter(code for _, _, code in words).items() if times > 1}
        silent: Messages = [{"role": role, "content": ""} for role in roles]
        style = self._manner.thoughts
        split, _ = divided(text, runs, words, silent, style)
        size = len(record.values)
        trace.write(text, runs, begin, words, size, complete=len(sure) == len(roles), parts=split != runs)

    def _render(self, record: Record, chat: Messages, *, add_generation_prompt: bool) -> tuple[str, list[Word], int]:
        """Return the skeleton, its words, and how many generation blocks ran."""
        inputs = self._template.inputs(chat, None, add_generation_prompt=add_generation_prompt)
        self._environment.record = record
        self._environment.blocks = 0

        def render() -> Any:
            made = concat(self._compiled.root_render_func(self._compiled.new_context(inputs)))
            str.encode(made.skeleton if isinstance(made, SymbolicStr) else made)  # fails for half a character
            return made

        try:
            text = limited(render)
        except TemplateLimitError:
            raise
        except Exception as error:  # jinja2 raises the same error again for the row
            raise TraceAbortedError(f"{type(error).__name__}: {error}") from error
        skeleton = text.skeleton if isinstance(text, SymbolicStr) else text
        return str.__str__(skeleton), sorted(words_of(skeleton)), self._environment.blocks


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
        for name in set(filters) - _FILTERS_ANY:
            filters[name] = _literal_only(filters[name], subjects=int(name in _FILTERS_METHOD))
        for name in set(tests) - _TESTS_EQUAL:
            watch = _of_type if name in _TESTS_TYPE else _literal_only
            tests[name] = watch(tests[name])
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
        if isinstance(obj, SymbolicStr):
            # A text has no such item; this is how templates test whether a content is a list of parts.
            return self.getattr(obj, argument) if isinstance(argument, str) else obj[argument]
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        require_literal(attribute)
        if isinstance(obj, SymbolicParts):
            return len(obj)  # aborts
        if isinstance(obj, SymbolicStr):
            if attribute in UNDERSTOOD:
                return getattr(obj, attribute)
            if hasattr(str, attribute):
                raise TraceAbortedError(f"`{attribute}` of a content cannot be traced")
            return super().getattr("", attribute)
        return super().getattr(obj, attribute)


def _items(places: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that returns the items of a sequence at these places, quickly if there are several."""
    return operator.itemgetter(*places) if len(places) > 1 else lambda values: tuple([values[at] for at in places])


def _literal_only(function: Callable[..., Any], subjects: int = 0) -> Callable[..., Any]:
    """Refuses contents in the arguments, except the first `subjects`."""
    free = subjects + hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        require_literal(args[free:])
        require_literal(kwargs)
        return function(*args, **kwargs)

    return wrapper


def _of_type(test: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(test)
    def wrapper(*args: Any) -> bool:
        return test(*("" if isinstance(arg, SymbolicStr) else arg for arg in args))

    return wrapper


def _is_in(value: Any, container: Any) -> bool:
    if isinstance(value, SymbolicStr) and isinstance(container, str) and not isinstance(container, SymbolicStr):
        return value.within(container)
    return value in container
