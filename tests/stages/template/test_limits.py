"""Templates that never end or fill the memory are stopped, and none escapes the sandbox."""

import mmap
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from packtrain.pipeline.execute import template_watchdog as watchdog
from packtrain.schemas.errors import RowRejectedError, TemplateError
from packtrain.schemas.rows import Messages
from packtrain.stages.template import limits
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer

Hurry = Callable[..., None]
CHAT: Messages = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def"}]
MANY = "{% for i in range(99999) %}"
DOUBLED = "{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"

NESTED = "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"

HUGE = {
    "a product": "{{ 'a' * 10**10 }}",
    "a product of a list": "{{ ([0] * 10**10) | length }}",
    "a product in steps": "{% set x = 'a' * 10**6 %}{{ x * 10**6 }}",
    "a product of a content": "{{ messages[0].content * 10**10 }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a computed width": "{{ '%*d' % (10**9, 1) }}",
    "a format's width": "{{ '{:9999999999}'.format(1) }}",
    "a format's computed width": "{{ '{:{}}'.format(1, 10**9) }}",
    "a format filter": "{{ '%9999999999d' | format(1) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "center, the method": "{{ 'a'.center(10**9) }}",
    "ljust": "{{ messages[0].content.ljust(10**10) }}",
    "zfill": "{{ '1'.zfill(10**10) }}",
    "tabs": "{{ '\t'.expandtabs(10**10) }}",
    "indent": "{{ 'a\nb' | indent(10**9) }}",
    "an indent of JSON": "{{ [1, [2]] | tojson(indent=10**9) }}",
    "joined": "{{ range(99999) | join('a' * 10**6) }}",
    "joined by the method": "{{ ('a' * 10**6).join(('b' * 99999) | list) }}",
    "replaced": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "replaced by the filter": "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "batches": "{{ [1] | batch(10**9, 0) | list | length }}",
    "the sum of pieces": "{% set x = 'a' * 10**6 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
    "a block": "{% set x %}" + MANY + "{{ 'a' * 10**5 }}{% endfor %}{% endset %}{{ x | length }}",
    "a tilde": "{% set x = 'a' * 10**8 %}{{ (x ~ x ~ x ~ x) | length }}",
    "a list": "{{ ([0] * 2**28) | length }}",
    "a list of characters": "{{ ('a' * 2**27) | list | length }}",
    "characters in groups": "{{ ('a' * 2**27) | groupby('x') | length }}",
    "pieces": "{{ ('a' * 2**27).split('a') | length }}",
    "joined characters": "{{ ('a' * 2**27) | join | length }}",
    "a sum of lists": "{{ ([[0] * 1000] * 100000) | sum(start=[]) | length }}",
    "nested lists": NESTED + "{{ ns.x }}",
    "JSON of nested lists": NESTED + "{{ ns.x | tojson }}",
    "doubled": "{% set ns = namespace(x='a' * 10**6) %}" + DOUBLED,
    "doubled lists": "{% set ns = namespace(x=[1] * 10**6) %}" + DOUBLED,
}
ENDLESS = {
    "nested loops": MANY * 4 + "{% endfor %}" * 4,
    "nested loops over a content": MANY * 3 + "{{ messages[0].content[0:0] }}" + "{% endfor %}" * 3,
    "macros without end": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "macros that branch": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "slices without end": "{% for s in [1] | slice(10**6) %}" + MANY + "{% endfor %}{% endfor %}",
    "counts in a long text": "{% set x = 'a' * 2**27 %}" + MANY + "{% if x.count('b') %}{% endif %}{% endfor %}",
    "a long word, cut": "{{ ('a' * 10**6) | wordwrap(1) | length }}",
    "parentheses of a link": "{{ ('a.com/' ~ '(' * 10**6 ~ ')' * 10**6) | urlize | length }}",
    "trimmed": "{{ ('a' * 10**7) | trim('b' * 10**6 ~ 'a') | length }}",
    "trimmed by the method": "{{ ('a' * 10**7).strip('b' * 10**6 ~ 'a') | length }}",
    "searched from the end": "{% set x = 'a' * 10**6 %}{{ (x ~ x).rfind(x ~ 'b' ~ x) }}",
    "searches in a long text": "{% set x = 'a' * 2**27 %}" + MANY + "{% if 'b' in x %}{% endif %}{% endfor %}",
    "sorts": MANY + "{{ range(99999) | sort | length }}{% endfor %}",
    "a power": "{{ (9**99999999) % 2 }}",
    "powers in steps": "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
}


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renderings are watched, and may take less memory than usual."""
    monkeypatch.setattr(watchdog, "MAX_GROWTH", 1 << 28)
    # A destructor may swallow the error, which is why it is raised again; pytest's own hook would format the first one
    # for so long that the second one strikes inside it.
    monkeypatch.setattr(sys, "unraisablehook", lambda _unraisable: None)
    watchdog.watch_templates()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Hurry:
    """Gives every rendering so many seconds from now on.

    Only what is to be stopped is hurried: on a busy machine anything may seem to take half a second, a compilation too.
    """

    def limit(seconds: float = 0.15) -> None:
        monkeypatch.setattr(watchdog, "SECONDS", seconds)
        monkeypatch.setattr(watchdog, "_AGAIN", 0.1)

    return limit


@pytest.mark.parametrize("name", [*HUGE, *ENDLESS])
def test_it_is_stopped_by_name(name: str, hurry: Hurry) -> None:
    template = ChatTemplate({**HUGE, **ENDLESS}[name], {}, "attack")
    hurry()
    began = time.process_time()
    with pytest.raises(TemplateError, match="'attack' was stopped"):
        template.render(CHAT)
    assert time.process_time() - began < 60  # without a limit, each would take many minutes or gigabytes


@pytest.mark.parametrize("name", ["a product", "center", "joined", "replaced", "a tilde", "nested loops"])
def test_so_it_is_by_the_quick_way(name: str, hurry: Hurry) -> None:
    renderer = Renderer(ChatTemplate({**HUGE, **ENDLESS}[name], {}, "attack"))
    hurry()
    for _ in range(2):
        with pytest.raises(TemplateError, match="'attack' was stopped"):
            renderer(CHAT[:1], CHAT[1:])


def if_bad(source: str) -> str:
    """What it does to a row that says `bad`; any other row is its first content."""
    return "{% if messages[0].content == 'bad' %}" + source + "{% endif %}{{ messages[0].content }}"


COUNTED = [HUGE["a product"], HUGE["a sum of lists"], ENDLESS["nested loops"], ENDLESS["counts in a long text"]]


@pytest.mark.parametrize("source", COUNTED)
def test_a_row_can_be_rejected_instead(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SECONDS", 60.0)
    monkeypatch.setattr(limits, "MAX_STEPS", 1 << 20)
    renderer = Renderer(ChatTemplate(if_bad(source), {}, "attack", on_limit="reject"), allow_lost=["assistant"])
    bad: Messages = [{"role": "user", "content": "bad"}]
    for chat in (CHAT, CHAT, CHAT, bad, CHAT, bad, CHAT):
        if chat is bad:
            with pytest.raises(RowRejectedError) as caught:
                renderer(chat, [])
            assert caught.value.reason == "template_limit"
            assert "attack" in caught.value.detail
        else:
            assert renderer(chat, []).text == "abc"


def test_nothing_is_computed_before_the_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant would be computed by the driver, and jinja2 hides that it was stopped."""
    wide = "'a' | center(999) | replace(' ', 'ab') | wordwrap(1)"
    template = ChatTemplate(f"{{{{ {wide} }}}}{{% set x = {wide} %}}", {}, "attack")
    monkeypatch.setattr(limits, "MAX_STEPS", 8)
    with pytest.raises(TemplateError, match="more than 8 steps"):
        template.render(CHAT)
    with pytest.raises(TemplateError, match="`autoescape`"):
        ChatTemplate(f"{{% autoescape {wide} %}}a{{% endautoescape %}}", {}, "attack")


def test_a_template_that_is_slow_for_the_samples_too_is_stopped_once(hurry: Hurry) -> None:
    """Or what it does with the samples would depend on the machine."""
    renderer = Renderer(ChatTemplate(ENDLESS["sorts"], {}, "attack"))
    hurry()
    with pytest.raises(TemplateError, match="stopped"):
        _ = renderer.manner


def test_long_texts_are_wrapped() -> None:
    words = "{{ ('abcd ' * 200000) | wordwrap | length }} {{ ('a' * 100000) | wordwrap | length }}"
    assert ChatTemplate(words + "{{ 'xyx' | trim('x') }}{{ 'a)' | urlize }}", {}, "t").render(CHAT) == (
        "999999 101265ya)"
    )


@pytest.mark.parametrize("source", [HUGE["nested lists"], ENDLESS["searches in a long text"]])
def test_a_row_is_never_rejected_because_of_time_or_memory(source: str, hurry: Hurry) -> None:
    """On a faster machine, or one with more memory, the same row would be taken."""
    template = ChatTemplate(if_bad(source), {}, "attack", on_limit="reject")
    hurry()
    with pytest.raises(TemplateError, match="'attack' was stopped"):
        template.render([{"role": "user", "content": "bad"}])
    hurry(60.0)
    assert template.render(CHAT) == "abc"


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content | replace('a', 'b' * 99999) }}{% endfor %}",
        "{% for m in messages %}{{ m.content.replace('a', 'b' * 99999) }}{% endfor %}",
        "{% for m in messages %}{{ (m.content ~ '!') * 1 }}" + "{{ m.content }}" * 300 + "{% endfor %}",
    ],
)
def test_traced_rows_have_the_same_limits(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace is made by small rows; a large one must not slip through it."""
    monkeypatch.setattr(watchdog, "SECONDS", 60.0)
    renderer = Renderer(ChatTemplate(source, {}, "attack", on_limit="reject"))
    for number in range(20):
        renderer([{"role": "user", "content": f"a{number}"}], [{"role": "assistant", "content": "b"}])
    for _ in range(2):
        with pytest.raises(RowRejectedError, match=r"more than 256 Mi characters|steps"):
            renderer([{"role": "user", "content": "a" * 10**6}], [{"role": "assistant", "content": "b"}])


def test_sums_of_lists_are_those_of_python() -> None:
    source = "{{ ([[1, 2], [3]] | sum(start=[0])) }}{{ messages | sum('x', start=[]) }}{{ [1, 2.5] | sum }}"
    chat: Messages = [{"role": "user", "content": "", "x": ["a"]}, {"role": "assistant", "content": "", "x": ["b"]}]
    assert ChatTemplate(source, {}, "t").render(chat) == "[0, 1, 2, 3]['a', 'b']3.5"


def test_the_limit_of_memory_is_lifted_afterwards(hurry: Hurry) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    template = ChatTemplate(HUGE["nested lists"], {}, "attack")
    hurry()
    with pytest.raises(TemplateError, match="was stopped"):
        template.render(CHAT)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_process_that_has_grown_meanwhile_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds besides is looked at again before memory is called exhausted."""
    monkeypatch.setattr(watchdog, "SECONDS", 5.0)
    monkeypatch.setattr(watchdog, "_SPACE_SECONDS", 3600.0)
    template = ChatTemplate("{{ ('a' * 2**26) | length }}", {}, "t")
    assert template.render(CHAT) == str(2**26)
    with mmap.mmap(-1, 3 << 30):
        assert template.render(CHAT) == str(2**26)


def test_what_is_long_but_not_too_long_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SECONDS", 5.0)
    chat: Messages = [{"role": "user", "content": "x1234567 " * 200_000}, {"role": "assistant", "content": "%s {} *"}]
    source = (
        "{% for m in messages %}{{ m.content | trim }}{{ '%-5s|%05d' % ('a', 3) }}{{ '{:>8}'.format('b') }}"
        "{{ 'c' | center(80) }}{{ '-' * 80 }}{{ m.content | replace('1', '22') | length }}{{ 'd' | indent(4) }}"
        "{{ [1, 2] | join(', ') }}{{ 2 ** 10 }}{{ [m.role] * 3 }}{{ '{\"a\": 1}' }}"
        "{{ m | tojson | length }}{% endfor %}"
    )
    renderer = Renderer(ChatTemplate(source, {}, "long"))
    text = renderer(chat[:1], chat[1:]).text
    assert text == renderer.untraced(chat[:1], chat[1:]).text
    assert len(text) > 1_700_000


def test_the_clock_stops_with_the_rendering(hurry: Hurry) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, "t")
    hurry(0.3)
    template.render(CHAT)
    began = time.process_time()
    while time.process_time() - began < 0.4:  # longer than a rendering may take
        sum(range(10_000))
    assert template.render(CHAT) == "abc"


ESCAPES = [
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
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% extends '/etc/passwd' %}",
    "{{ open('/etc/passwd') }}",
    "{{ (1).to_bytes(3 * 10**9, 'big') | length }}",
    "{{ (1.5).as_integer_ratio() }}",
    "{{ 'a'.encode().center(3 * 10**9) | length }}",
    "{{ messages[0].content.encode() }}",
    "{{ messages[0].content.translate({97: 'b' * 1000}) }}",
    "{{ __import__('os') }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_there_is_no_way_out(source: str) -> None:
    """The quick way refuses what the sandbox refuses, or prints the same nothing."""
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
    chat: Messages = [CHAT[0], {**CHAT[1], "tool_calls": [call]}]
    renderer = Renderer(ChatTemplate(source, {}, "escape"))

    def said(render: Any) -> str:
        try:
            return str(render())
        except (RowRejectedError, TemplateError) as error:
            return f"refused: {error}"

    exact = said(lambda: renderer.template.render(chat))
    chat_with_ropes = renderer._marker.own(chat)
    quick = said(lambda: renderer._marker.render(chat_with_ropes, None).text)
    assert quick.replace("'TrackedStr'", "'str'").replace("'OwnedDict'", "'dict'") == exact
    assert exact.startswith("refused: ") or "class" not in exact
    assert "root:" not in exact
    assert not any(word in exact for word in ("<class", "module", "function", "built-in"))
    assert chat == [CHAT[0], {**CHAT[1], "tool_calls": [call]}]
