"""Chat templates of other people: none reaches Python, none goes on for ever or fills the memory; a run names it."""

from pathlib import Path

import pytest
from packtrain.schemas.errors import PacktrainError

from tests.kit import Config, Packed, Row, configure, demo_tokenizer, packed, write
from tests.support.hostile import SECRET

pytestmark = pytest.mark.usefixtures("tokenizer_loader")

CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
ROWS: list[Row] = [
    {"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def", "tool_calls": [CALL]}]},
    {"messages": [{"role": "user", "content": "bad"}, {"role": "assistant", "content": "def"}]},
]
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ messages[0].__class__.__base__ }}",
    "{{ messages[0].content.__class__ }}",
    "{{ messages[0]['content'].__init__.__globals__ }}",
    "{{ messages[0].content.words }}",
    "{{ messages[1].tool_calls[0]._code }}",
    "{{ messages[1].tool_calls[0].function.arguments.__class__ }}",
    "{{ (messages | attr('__class__')).mro() }}",
    "{{ messages[0].content | attr('__class__') }}",
    "{{ namespace(__class__=1) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.__class__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ range.__class__ }}",
    "{{ self.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ loop.__class__ }}",
    "{% for m in messages %}{{ loop._iterator }}{{ loop.__class__ }}{% endfor %}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "{{ messages[0].content.format_map({}) if false else '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ ['{0.__class__}'] | map('format', 1) | list }}",
    "{{ (['{0.__class__}'] | map(attribute='format') | list)[0](1) }}",
    "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
    "{{ messages[0].update({'content': 'x'}) }}",
    "{{ messages[1].tool_calls[0].function.arguments.clear() }}",
    "{{ messages[0].pop('content') }}",
    "{% set ns = namespace() %}{{ ns.__class__ }}{{ ns._Namespace__attrs }}",
    "{% macro f() %}{% endmacro %}{{ f.__call__.__globals__ }}",
    "{% include '{secret}' %}",
    "{% import '{secret}' as x %}",
    "{% extends '{secret}' %}",
    "{{ open('{secret}') }}",
    "{{ (1).to_bytes(3 * 10**9, 'big') | length }}",
    "{{ (1.5).as_integer_ratio() }}",
    "{{ 'a'.encode().center(3 * 10**9) | length }}",
    "{{ messages[0].content.encode() }}",
    "{{ messages[0].content.translate({97: 'b' * 1000}) }}",
    "{{ __import__('os') }}",
)
ENDLESS = (
    "{{ 'a' * 10**10 }}",
    "{{ ([0] * 10**10) | length }}",
    "{{ messages[0].content.ljust(10**10) }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
)
"""Allocations and a recursion; `test_pool.py` has what takes too long."""


def configured(folder: Path, template: str, **keys: object) -> Config:
    """Two conversations, and the template in a file called `attack.jinja`."""
    write(folder / "theirs.jsonl", ROWS)
    (folder / "attack.jinja").write_text(template)
    lost = ["system", "tools", "user", "assistant", "tool_calls", "tool_results"]
    tokenizer = {"chat_template": str(folder / "attack.jinja"), "allow_lost": lost, **keys}
    return configure(
        folder, {"name": "theirs", "format": "messages", "path": "theirs.jsonl"}, tokenizer=tokenizer, mask="all"
    )


def text_of(result: Packed) -> str:
    """What was packed."""
    from tokenizers import Tokenizer

    engine = Tokenizer.from_file(str(demo_tokenizer() / "tokenizer.json"))
    return "\n".join(engine.decode(row["input_ids"], skip_special_tokens=False) for row in result.rows())


@pytest.mark.parametrize("share", [0, *(pytest.param(share, marks=pytest.mark.slow) for share in range(1, 4))])
def test_no_template_reaches_python(tmp_path: Path, share: int) -> None:
    """It is refused by name, its rows are rejected, or what it prints is nothing of Python's."""
    (tmp_path / "secret").write_text(SECRET)
    for number, escape in enumerate(ESCAPES[share::4]):
        template = escape.replace("{secret}", str(tmp_path / "secret")) + TURNS
        try:
            said = text_of(packed(configured(tmp_path / str(number), template)))
        except PacktrainError as error:
            said = str(error)
            assert "attack" in said or "template" in said, escape
            said = said.replace(template, "").replace(escape, "")
        for word in (SECRET, "<class", "<module", "<function", "<built-in", "uid=", "__globals__'", " object at 0x"):
            assert word not in said, (escape, said)


@pytest.mark.parametrize("attack", ENDLESS)
def test_what_has_no_end_is_stopped(tmp_path: Path, attack: str) -> None:
    with pytest.raises(PacktrainError, match="was stopped"):
        packed(configured(tmp_path, attack + TURNS))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_what_is_long_but_not_too_long_is_rendered(tmp_path: Path) -> None:
    source = (
        "{{ '%-5s|%05d' % ('a', 3) }}{{ '{:>8}'.format('b') }}{{ 'c' | center(80) }}{{ '-' * 80 }}"
        "{{ ('x1234567 ' * 200000) | replace('1', '22') | length }}{{ 'd' | indent(4) }}{{ [1, 2] | join(', ') }}"
        "{{ 2 ** 10 }}{{ [messages[0].role] * 3 }}{{ ('a' * 100000) | wordwrap | length }}{{ ' xyx ' | trim }}"
    )
    text = text_of(packed(configured(tmp_path, source + TURNS)))
    assert "a    |00003       b" in text
    assert "2000000d1, 21024['user', 'user', 'user']101265xyx" in text


def test_rows_do_not_change_each_other(tmp_path: Path) -> None:
    """State that a template keeps ends with its row."""
    template = "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ cycler('x', 'y').next() }}" + TURNS
    text = text_of(packed(configured(tmp_path, template)))
    assert text.count("1x<|im_start|>user") == 2
