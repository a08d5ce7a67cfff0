"""A compiled trace: a short program that renders every row that takes one path through a template.

It is compiled from the record of one row's symbolic rendering. Where the assistant's turns lie is found in its
*skeleton*: the text with one private character for every value. What is true of the skeleton is true for all contents,
so runs end at the same places among the literals and values of every row.
"""

import operator
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, chain
from typing import Any, TypeAlias

from .bounded import concat, require_size
from .kept import ALLOWED_AS, DROPPED_REASONING, THOUGHT_END, drops_thought, has_letters
from .rendered import Rendered, Runs, runs_of
from .symbol import DERIVATIONS, INSPECTIONS, Atom, Atoms, Record, Step, TraceAbortedError
from .turns import (
    ASSISTANT,
    GENERATION,
    Manner,
    Turn,
    UnprovedError,
    Word,
    code_of,
    completion_start,
    find_turns,
    generated_turns,
)

Instruction: TypeAlias = tuple[Callable[[Any], Any], int | slice, bool | None]
"""(function, number of its argument, outcome of a guard or None for a value that is kept).

A join takes all values, as a slice."""

OPEN, CLOSE = -1, -2
"""Atoms that stand where a generation block begins and ends. They have no text."""
_PLANE = 0xF0000
"""In a skeleton, value n is this character plus n: private, and not in any template."""
_MAX_VALUES = 0xFFF0
_STRIPS = frozenset({"strip", "lstrip", "rstrip"})
_CASES = frozenset({"upper", "lower", "capitalize", "title"})


class Trace:
    """One path through a template: the guards that choose it, and a program that renders its rows.

    A path on which the template does what cannot be traced has guards too, so that its rows are recognised.

    Attributes:
        why_not: why the rows of this path cannot be rendered here, or "".
    """

    def __init__(
        self,
        program: list[Instruction],
        literals: list[str],
        output: "_Output | None" = None,
        spoken: Sequence[tuple[int, Sequence[int]]] = (),
        losable: Sequence[tuple[int, Callable[[list[str]], bool], str]] = (),
        why_not: str = "",
    ) -> None:
        self.why_not = why_not
        self._program = program
        self._literals = literals
        self._output = output
        self._spoken = spoken
        """Of each message that may lose a thought: its content, and the values in the text that are made of it."""
        self._losable = losable
        """Of each message whose words may be left out: which, whether they are in the text, what they are called; ""
        where they must not be."""

    def values(self, contents: list[str]) -> list[str] | None:
        """What the program makes of the contents of a row, or None where a guard does not hold.

        Raises:
            TemplateLimitError: a text would be too long. So does `rendered`.
        """
        values = contents + self._literals
        for function, argument, outcome in self._program:
            result = function(values[argument])
            if outcome is None:
                values.append(result)
            elif result is not outcome:
                return None
        return values

    def rendered(self, contents: list[str], values: list[str]) -> Rendered | None:
        """The rendering of a row whose guards hold, or None where it is for jinja2 to render."""
        if self._output is None:
            return None
        rendered = self._output(values)
        dropped: set[str] = set()
        for content, written in self._spoken:
            said = contents[content]
            if THOUGHT_END in said and drops_thought(said, [values[one] for one in written]):
                dropped.add(DROPPED_REASONING)
        for content, shows, what in self._losable:
            if not shows(values):
                if not what or THOUGHT_END in contents[content] or not has_letters(contents[content]):
                    return None  # for jinja2 to judge: it may be reasoning only, or signs without words
                dropped.add(what)
        return rendered._replace(dropped=tuple(sorted(dropped))) if dropped else rendered


_Output: TypeAlias = Callable[[list[str]], Rendered]


def skeleton(atoms: Atoms) -> str:
    """Symbolic text in which every value is one character: what is true of it is true for all contents."""
    parts = []
    for atom in atoms:
        if isinstance(atom, int):
            if atom > _MAX_VALUES:
                raise TraceAbortedError("the template makes too many values")
            parts.append(chr(_PLANE + atom) if atom >= 0 else "")
        else:
            parts.append(atom)
    return "".join(parts)


def _is_value(character: str) -> bool:
    return _PLANE <= ord(character) <= _PLANE + _MAX_VALUES


class Compiler:
    """From a record to a trace: finds the runs in the skeleton, and numbers the values anew."""

    def __init__(
        self,
        record: Record,
        roles: tuple[str, ...],
        prompt: int,
        text: Atoms,
        blocks: int,
        manner: Manner,
        head: Callable[[int], Atoms],
        allow_lost: Collection[str],
    ) -> None:
        self.record = record
        self.roles = roles
        self.prompt = prompt
        self.manner = manner
        self.head = head
        self.allow_lost = allow_lost
        self.atoms = tuple(atom for atom in text if not isinstance(atom, int) or atom >= 0)
        self.skeleton = skeleton(text)
        if any(_is_value(c) for atom in self.atoms if isinstance(atom, str) for c in atom if ord(c) >= _PLANE):
            raise TraceAbortedError("the template writes private characters")
        self.words = self._words(text, blocks)

    def trace(self) -> Trace:
        """The compiled trace.

        Raises:
            TraceAbortedError: what belongs to whom depends on the contents, or is not proved.
        """
        whole = len(self.skeleton)
        inside = 0 < self.prompt < len(self.roles)
        try:
            if self.manner.generation:
                turns = generated_turns(self.skeleton, self.words, self.roles, self.manner)
            else:
                turns = find_turns(
                    self.skeleton,
                    self.words,
                    self.roles,
                    self.prompt,
                    self.manner,
                    lambda index: (skeleton(self.head(index)), lambda: self._words(self.head(index), 0)),
                    cut=self._cut,
                )
        except UnprovedError as error:
            # What is true of the skeleton is true of all rows, but what is not may still be true of some.
            raise TraceAbortedError(error.reason) from error
        begin = 0 if not self.prompt else whole
        if inside:
            begin = self._begin(turns)
        runs = runs_of(turns, begin, whole, self.prompt, self.roles, [True] * len(self.roles), ())
        if any(end > begin and 0 <= code < code_of(self.prompt) for _, end, code in self.words):
            raise TraceAbortedError("words of the prompt stand in the completion")
        if inside and begin not in (0, *runs.ends):
            raise TraceAbortedError("the completion begins within a turn")
        return self._proved(runs, begin)

    def _begin(self, turns: list[Turn]) -> int:
        """Where the completion begins, in the skeleton."""
        known = next((turn.begin for turn in turns if turn.message == self.prompt), None)
        head, said = skeleton(self.head(self.prompt)), self._words(self.head(self.prompt), None)
        begin, rewritten = completion_start(
            self.skeleton,
            self.words,
            self.prompt,
            len(self.roles),
            turns,
            head,
            max((end for _, end, _ in said), default=0),
            self.manner,
        )
        if rewritten or not (begin == known or self.skeleton.startswith(head)):
            raise TraceAbortedError("where the completion begins depends on the contents")
        return begin

    def _cut(self, place: int, rest: str) -> None:
        """The words at `place` begin a turn unless they go on as the generation prompt does."""
        value = ord(self.skeleton[place]) - _PLANE
        if any(map(_is_value, rest)) or self.record.inspect((value,), "startswith", rest):
            raise TraceAbortedError("where a turn begins depends on the contents")

    def _words(self, atoms: Atoms, blocks: int | None) -> list[Word]:
        """The values of the skeleton and whose they are; and the generation blocks."""
        owners = self._owners()
        words: list[Word] = []
        opened: list[int] = []
        place = 0
        for atom in atoms:
            if isinstance(atom, str):
                place += len(atom)
            elif atom >= 0:
                words.append((place, place + 1, code_of(owners[atom])))
                place += 1
            elif atom == OPEN:
                opened.append(place)
            elif opened:
                words.append((opened.pop(), place, GENERATION))
        if opened or blocks not in (None, sum(code == GENERATION for _, _, code in words)):
            raise TraceAbortedError("a generation block went through code that is not traced")
        return sorted(words)

    def _owners(self) -> list[int]:
        """Whose each value is. What is made of the words of several is the last one's, if none is the assistant's."""
        owners = list(range(len(self.roles)))
        for step in self.record.steps:
            if step.is_guard:
                continue
            if step.name != "cat":
                owners.append(owners[step.source])
                continue
            found = [owners[atom] for atom in step.args if isinstance(atom, int)]
            pure = len(found) == len(step.args) and len(set(found)) == 1
            if not pure and any(self.roles[owner] == ASSISTANT for owner in found):
                raise TraceAbortedError("words of the assistant are mixed with others")
            owners.append(found[-1])
        return owners

    def _sources(self) -> list[dict[int, int]]:
        """Of each value, the messages that it is made of, and of each a value that must not be blank for its words to
        be there: the content itself where nothing can take them out, and -1 where nothing says."""
        sources: list[dict[int, int]] = [{index: index} for index in range(len(self.roles))]
        for step in self.record.steps:
            if step.is_guard:
                continue
            if step.name == "cat":
                made: dict[int, int] = {}
                for atom in step.args:
                    if isinstance(atom, int):
                        for message, value in sources[atom].items():
                            made[message] = message if value == message else made.get(message, value)
            elif _strips_blanks(step) or (step.name in _CASES and not step.args):
                made = sources[step.source]
            else:  # of several messages' words, those of one may be what it takes out
                made = dict.fromkeys(sources[step.source], int(step.outcome) if len(sources[step.source]) == 1 else -1)
            sources.append(made)
        return sources

    def _proved(self, runs: Runs, begin: int) -> Trace:
        """Literals are split where runs end, so that a run ends where a piece does."""
        pieces: list[Atom] = []
        counts: list[int] = []
        place, ends = 0, list(runs.ends)
        for atom in self.atoms:
            size = 1 if isinstance(atom, int) else len(atom)
            while ends and ends[0] < place + size and isinstance(atom, str):
                cut = ends.pop(0) - place
                pieces.append(atom[:cut])
                counts.append(len(pieces))
                atom, place, size = atom[cut:], place + cut, size - cut
            pieces.append(atom)
            place += size
            while ends and ends[0] == place:
                ends.pop(0)
                counts.append(len(pieces))
        assert not ends
        which = tuple(count - 1 for count in counts)
        at = None if begin == 0 else runs.ends.index(begin)
        _, kinds, indices, trains = runs
        picking = operator.itemgetter(*which) if len(which) > 1 else lambda sums: (sums[which[0]],)

        def make(take: Callable[[Any], Any]) -> _Output:
            def output(values: list[str]) -> Rendered:
                parts = take(values)
                ends = tuple(accumulate(map(len, parts)))
                require_size(ends[-1])
                picked = picking(ends)
                start = 0 if at is None else picked[at]
                return Rendered("".join(parts), start, Runs(picked, kinds, indices, trains), "")

            return output

        program, literals, number = compile_steps(self.record, len(self.roles), tuple(pieces))
        # Two more empty strings make `itemgetter` give a tuple whatever the number of pieces.
        output = make(operator.itemgetter(*(number[piece] for piece in (*pieces, "", ""))))
        return Trace(program, literals, output, *self._reaching(number))

    def _reaching(
        self, number: dict[Atom, int]
    ) -> tuple[list[tuple[int, list[int]]], list[tuple[int, Callable[[list[str]], bool], str]]]:
        """What says of a row whether its contents reach the text: `spoken` and `losable` of the trace."""
        sources = self._sources()
        written = [atom for atom in dict.fromkeys(self.atoms) if isinstance(atom, int)]
        losable: list[tuple[int, Callable[[list[str]], bool], str]] = []
        for message, role in enumerate(self.roles):
            shown = {sources[atom][message] for atom in written if message in sources[atom]}
            if message in shown:
                continue
            shows = _shows(message, [number[one] for one in shown if one >= 0])
            what = ALLOWED_AS.get(role, "")
            losable.append((message, shows, what if what in self.allow_lost and -1 not in shown else ""))
        whole = set(range(len(self.roles)))  # values that hold all of a content but blanks around it, thoughts too
        for step in self.record.steps:
            if step.source in whole and _strips_blanks(step):
                whole.add(int(step.outcome))
        spoken = []
        for message in range(len(self.roles)):
            shown = {atom for atom in written if message in sources[atom]}
            if shown.isdisjoint(whole):
                spoken.append((message, [number[atom] for atom in written if atom in shown]))
        return spoken, losable


def compile_steps(
    record: Record, contents: int, pieces: Atoms = ()
) -> tuple[list[Instruction], list[str], dict[Atom, int]]:
    """The program, its literals, and the number of each value: contents, then literals, then what is made of them.

    Args:
        contents: how many messages there are.
        pieces: of the text.
    """
    needed = {atom for atom in pieces if isinstance(atom, int)}
    steps: list[Step] = []
    for step in reversed(record.steps):  # only what a guard or the text depends on
        if step.is_guard or step.outcome in needed:
            steps.append(step)
            needed.update(
                (atom for atom in step.args if isinstance(atom, int)) if step.name == "cat" else (step.source,)
            )
    steps.reverse()

    literals: dict[str, int] = {"": contents}
    for atom in chain(pieces, *(step.args for step in steps if step.name == "cat")):
        if isinstance(atom, str):
            literals.setdefault(atom, contents + len(literals))
    number: dict[Atom, int] = {index: index for index in range(contents)}
    number.update(literals)

    program: list[Instruction] = []
    size = contents + len(literals)
    for step in steps:
        if step.is_guard:
            guard = INSPECTIONS[step.name](*step.args)
            program.append((guard, number[step.source], bool(step.outcome)))
            continue
        if step.name == "cat":
            taking = operator.itemgetter(*(number[atom] for atom in (*step.args, "", "")))
            program.append((_join(taking), slice(None), None))
        else:
            program.append((DERIVATIONS[step.name](*step.args), number[step.source], None))
        number[step.outcome] = size
        size += 1
    return program, list(literals), number


def _strips_blanks(step: Step) -> bool:
    """Whether a step takes nothing but blanks from a content."""
    return step.name in _STRIPS and all(arg is None or (isinstance(arg, str) and arg.isspace()) for arg in step.args)


def _shows(message: int, shown: list[int]) -> Callable[[list[str]], bool]:
    """Whether words of a message are in the text, or it says nothing.

    Args:
        shown: values, one of which must not be blank.
    """
    return lambda values: not values[message].strip() or any(values[one].strip() for one in shown)


def _join(taking: Callable[[Any], Any]) -> Callable[[list[str]], str]:
    return lambda values: concat(taking(values))
