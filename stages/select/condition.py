"""What a `where` condition may contain: a list of allowed words, and size limits. polars evaluates the condition.

The check reads tokens and the arguments of calls before polars sees the text, because polars opens files while it
parses (`SELECT ... FROM read_csv(...)`) and its parser can overflow the stack. A second full SQL grammar would read
some texts differently from polars; a list of tokens cannot.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

MAX_CHARACTERS = 65_536
MAX_LITERAL = 1_000
"""Maximum number of characters of one text or pattern."""
MAX_OPERATIONS = 256
"""Maximum number of operators, keywords and calls, not counting values of IN lists; polars takes seconds for 500 `OR`s.
"""
MAX_DEPTH = 32
"""Maximum depth of nested brackets and CASEs."""
MAX_COPIES = 1_024
"""Maximum number of copies that polars may make of one operand: it evaluates the text of `NULLIF(text, 'a')` twice, and
nesting multiplies the copies.
"""
MAX_JOINS = 8
"""Maximum number of texts joined by `||` and CONCAT; joins multiply the size of a block of rows."""
MAX_STATES = 5_000
"""Maximum number of characters of a pattern with its counted repetitions written out: `(ab{20}){50}` has 1,050."""

_ROW_FUNCTIONS = """
    ABS ARRAY_CONTAINS ARRAY_GET ARRAY_LENGTH BIT_LENGTH CAST CEIL CEILING CHARACTER_LENGTH CHAR_LENGTH COALESCE CONCAT
    CONCAT_WS DIV ENDS_WITH FLOOR GREATEST IF IFNULL INITCAP LEAST LEFT LENGTH LN LOG LOG10 LOG2 LOWER LTRIM MOD NULLIF
    OCTET_LENGTH POSITION POW POWER REGEXP_LIKE REPLACE REVERSE RIGHT ROUND RTRIM SIGN SPLIT_PART SQRT STARTS_WITH
    STRING_TO_ARRAY STRPOS SUBSTR SUBSTRING TRIM TRY_CAST UPPER
"""
_EXPRESSION_WORDS = """
    ALL AND ANY ARRAY AS BETWEEN BOTH CASE DISTINCT ELSE END FALSE FOR FROM ILIKE IN IS LEADING LIKE NOT NULL OR REGEXP
    RLIKE THEN TRAILING TRUE WHEN XOR
"""
_TYPES = (
    "BIGINT BOOL BOOLEAN CHAR DOUBLE FLOAT INT INTEGER PRECISION REAL SMALLINT STRING TEXT TINYINT UNSIGNED VARCHAR"
)
FUNCTIONS = frozenset(_ROW_FUNCTIONS.split())
"""Functions that look at one row and cannot make it much longer. LPAD, RPAD and ARRAY_TO_STRING can."""
_KEYWORDS = frozenset(_EXPRESSION_WORDS.split()) | frozenset(_TYPES.split())
_FIELDS = frozenset({"role", "content"})
"""Fields of a message."""
_COPIES = {
    "ARRAY_GET": 4, "LEFT": 6, "NULLIF": 2, "RIGHT": 6, "SPLIT_PART": 4, "SUBSTR": 5, "SUBSTRING": 5
}  # fmt: skip
"""The most copies that polars makes of an argument of each function."""
_MATCHES = frozenset({"~", "~*", "!~", "!~*", "LIKE", "ILIKE", "RLIKE", "REGEXP"})
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>--|/\*)
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>"[^"]*")
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)
    |(?P<word>[A-Za-z_][A-Za-z_0-9]*)
    |(?P<symbol><=>|!~\*|<>|!=|<=|>=|==|\|\||::|//|!~|~\*|\^@|[-+*/%=<>~()\[\],.])""",
    re.VERBOSE,
)
_PATTERN = re.compile(r"\\[pPx]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)
"""Matches one piece of a regular expression: an escape, a class, a counted repetition, or one character."""


class RefusedConditionError(ValueError):
    """A condition contains something that is not allowed. `Where` catches it and names the key."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def upper(self) -> str:
        """The token in capitals, as keywords and functions are compared."""
        return self.text.upper()

    @property
    def value(self) -> str:
        """The content of a text literal."""
        return self.text[1:-1].replace("''", "'")


@dataclass(slots=True)
class _Bracket:
    """An open bracket or CASE, and its content so far."""

    call: str
    """The function's name, or "" for other brackets."""
    arguments: list[list[_Token]] = field(default_factory=lambda: [[]])
    copies: int = 1
    """Copies that polars makes of an operand of this function, or of the operand of a CASE."""
    has_operand: bool = False
    """For a CASE: whether it compares an operand with each WHEN."""
    inner: int = 1
    """The most copies made by a bracket inside this one."""
    betweens: int = 0
    """Number of consecutive BETWEENs; each repeats the expression before it."""
    most_betweens: int = 0
    open_betweens: int = 0
    """Number of BETWEENs whose AND has not come yet."""

    @property
    def repeated(self) -> int:
        """The most copies that polars makes of an operand in this bracket."""
        return self.copies * self.inner << self.most_betweens

    def count_copies(self, word: str) -> None:
        """Count the copies that a token (in capitals) causes."""
        if word == "BETWEEN":
            self.betweens += 1
            self.open_betweens += 1
            self.most_betweens = max(self.most_betweens, self.betweens)
        elif word == "AND" and self.open_betweens:
            self.open_betweens -= 1
        elif word in ("AND", "OR", "XOR", ",", "WHEN", "THEN", "ELSE"):
            self.betweens = self.open_betweens = 0
        if word == "WHEN" and self.has_operand:
            self.copies += 1


def check_condition(condition: str, columns: Collection[str]) -> None:
    """Check that a condition uses only `columns`, FUNCTIONS and expression operators, within the limits.

    Raises:
        RefusedConditionError: something is not allowed; the message names the word and what is allowed.
    """
    if len(condition) > MAX_CHARACTERS:
        raise RefusedConditionError(f"it has {len(condition):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    tokens = _tokens(condition)
    operations = sum(
        token.kind == "word" or (token.kind == "symbol" and token.text not in "()[],.") for token in tokens
    )
    operations -= sum(token.text in columns for token in tokens)
    if operations > MAX_OPERATIONS:
        raise RefusedConditionError(
            f"it has {operations:,} operators and functions; at most {MAX_OPERATIONS} are allowed: compare with many "
            "values by IN ('a', 'b', ...)"
        )
    joins = 0
    open_brackets = [_Bracket("")]
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        called = after is not None and after.text == "("
        if token.kind == "name" or token.kind == "word":
            _check_word(token, columns, before, called, open_brackets)
        if token.text == "||":
            joins += 1
        if token.upper in _MATCHES and token.kind != "text":
            _check_pattern(tokens[index + 1 : index + 3], token.upper)
        if token.text in ("(", "[") or token.upper == "CASE":
            function = before.upper if before is not None and before.upper in FUNCTIONS and token.text == "(" else ""
            operand = token.upper == "CASE" and after is not None and after.upper != "WHEN"
            open_brackets.append(_Bracket(function, copies=_COPIES.get(function, 1), has_operand=operand))
            if len(open_brackets) > MAX_DEPTH:
                raise RefusedConditionError(f"it nests more than {MAX_DEPTH} levels deep")
        elif token.text in (")", "]") or token.upper == "END":
            closed = open_brackets.pop()
            if not open_brackets:
                raise RefusedConditionError("it closes a bracket that is not open")
            joins += len(closed.arguments) if closed.call in ("CONCAT", "CONCAT_WS") else 0
            _check_call(closed)
            open_brackets[-1].inner = max(open_brackets[-1].inner, closed.repeated)
        elif token.text == ",":
            open_brackets[-1].arguments.append([])
            open_brackets[-1].count_copies(",")
            continue
        open_brackets[-1].arguments[-1].append(token)
        open_brackets[-1].count_copies(token.upper)
        if open_brackets[-1].repeated > MAX_COPIES:
            raise RefusedConditionError(
                f"BETWEEN, CASE and {', '.join(sorted(_COPIES))} are nested so deeply that an operand would be "
                f"computed {open_brackets[-1].repeated:,} times; at most {MAX_COPIES:,} are allowed"
            )
    if joins > MAX_JOINS:
        raise RefusedConditionError(f"it joins {joins:,} texts; at most {MAX_JOINS} are allowed")


def _tokens(condition: str) -> list[_Token]:
    tokens, place = [], 0
    while place < len(condition):
        match = _TOKEN.match(condition, place)
        if match is None:
            if condition[place] in "'\"":
                raise RefusedConditionError(f"the quote at character {place + 1:,} is not closed")
            raise RefusedConditionError(f"it cannot contain {condition[place]!r} outside of quotes")
        kind, place = str(match.lastgroup), match.end()
        if kind == "comment":
            raise RefusedConditionError("it cannot contain comments")
        if kind == "text" and len(match[0]) - 2 > MAX_LITERAL:
            raise RefusedConditionError(f"a text in it has more than {MAX_LITERAL:,} characters")
        if kind != "space":
            tokens.append(_Token(kind, match[0]))
    return tokens


def _check_word(
    token: _Token, columns: Collection[str], before: _Token | None, called: bool, open_brackets: list[_Bracket]
) -> None:
    """Check that a name is a column, an allowed function before its bracket, or a keyword of expressions."""
    name = token.text[1:-1] if token.kind == "name" else token.text
    if before is not None and before.text == ".":
        if name not in _FIELDS:
            raise RefusedConditionError(f"a message has no field {name!r}; its fields are {', '.join(sorted(_FIELDS))}")
    elif called and token.kind == "word" and token.upper not in _KEYWORDS:
        if token.upper not in FUNCTIONS:
            raise RefusedConditionError(
                f"the function {name} is not allowed; allowed are {', '.join(sorted(FUNCTIONS))}"
            )
    elif name in columns:
        pass
    elif token.kind == "name" or token.upper not in _KEYWORDS:
        raise RefusedConditionError(f"there is no column {name!r}; the columns are {', '.join(columns)}")
    elif token.upper == "FROM":
        distinct = before is not None and before.upper == "DISTINCT"
        if not distinct and open_brackets[-1].call not in ("TRIM", "SUBSTRING", "SUBSTR"):
            raise RefusedConditionError("it cannot use FROM; it sees only the example's columns")


def _check_call(bracket: _Bracket) -> None:
    """Check that arguments which decide the size of a result are literals."""
    arguments = bracket.arguments
    if bracket.call == "REGEXP_LIKE" and len(arguments) > 1:
        if len(arguments[1]) != 1:
            raise RefusedConditionError("the pattern of REGEXP_LIKE must be one text in quotes")
        _check_pattern(arguments[1], "REGEXP_LIKE")
    elif bracket.call == "REPLACE" and len(arguments) == 3:
        if any(len(argument) != 1 or argument[0].kind != "text" for argument in arguments[1:]):
            raise RefusedConditionError("REPLACE takes two texts in quotes after its first argument")
        old, new = (len(argument[0].value.encode()) for argument in arguments[1:])
        if not old or new > old:
            raise RefusedConditionError(
                "REPLACE cannot make a text longer: its new text has more bytes than the old one"
            )


def _check_pattern(following: list[_Token], operator: str) -> None:
    """Check that a pattern is a literal, so that text from rows is never compiled, and repeats little."""
    if not following or following[0].kind != "text" or any(token.text == "||" for token in following[1:]):
        raise RefusedConditionError(f"the pattern of {operator} must be one text in quotes")
    if operator.endswith("LIKE") and operator not in ("RLIKE", "REGEXP_LIKE"):
        return
    states = _states(following[0].value)
    if states > MAX_STATES:
        raise RefusedConditionError(
            f"the pattern of {operator} has {states:,} characters with its repetitions written out; at most "
            f"{MAX_STATES:,} are allowed"
        )


def _states(pattern: str) -> int:
    """Count the characters of a pattern with its counted repetitions written out."""
    sums, last = [0], 0
    for match in _PATTERN.finditer(pattern):
        if match[1] is not None:  # the last piece is already counted once
            times = max(int(match[1][:9]), int((match[2] or "0")[:9]), 1)
            sums[-1] += last * (times - 1)
            last *= times
        elif match[0] == "(":
            sums.append(0)
        elif match[0] == ")" and len(sums) > 1:
            last = sums.pop() + 1
            sums[-1] += last
        else:
            last = 1
            sums[-1] += 1
    return sum(sums)
