"""A template that never ends or fills the memory is stopped, and what it leaves behind stops nothing else."""

import mmap
import resource
import sys
import time
from collections.abc import Callable

import pytest
from packtrain.pipeline.execute import template_watchdog as watchdog
from packtrain.schemas.errors import StoppedTemplateError, TemplateError
from packtrain.schemas.rows import Messages
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer

Hurry = Callable[..., None]
CHAT: Messages = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def"}]
NESTED = "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renderings are watched, and may take less memory than usual."""
    monkeypatch.setattr(watchdog, "SPACE_GROWTH", 1 << 28)
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


def test_a_constant_is_not_computed_while_a_template_is_compiled(hurry: Hurry) -> None:
    """There, jinja2 hides that it was stopped."""
    hurry(0.0001)
    with pytest.raises(TemplateError, match="`autoescape`"):
        ChatTemplate("{% autoescape 'a' | center(999) %}a{% endautoescape %}", {}, "attack")
    template = ChatTemplate("{{ 'a' * 10**10 }}{% set x = 'a' | center(10**10) %}", {}, "attack")
    with pytest.raises(StoppedTemplateError, match="memory"):
        template.render(CHAT)


def test_other_rows_are_rendered(hurry: Hurry) -> None:
    source = "{% if messages[0].content == 'bad' %}" + NESTED + "{% endif %}{{ messages[0].content }}"
    renderer = Renderer(ChatTemplate(source, {}, "attack"), allow_lost=["assistant"])
    assert renderer(CHAT, []).text == "abc"
    hurry()
    with pytest.raises(StoppedTemplateError, match="'attack' was stopped"):
        renderer([{"role": "user", "content": "bad"}], [])
    hurry(60.0)
    assert renderer(CHAT, []).text == "abc"


def test_the_limit_of_memory_is_lifted_afterwards(hurry: Hurry) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    template = ChatTemplate(NESTED, {}, "attack")
    hurry()
    with pytest.raises(TemplateError, match="was stopped"):
        template.render(CHAT)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_process_that_has_grown_meanwhile_is_no_limit(hurry: Hurry, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds besides is looked at again before memory is called exhausted."""
    hurry(60.0)
    monkeypatch.setattr(watchdog, "_SPACE_SECONDS", 3600.0)
    template = ChatTemplate("{{ ('a' * 2**26) | length }}", {}, "t")
    assert template.render(CHAT) == str(2**26)
    with mmap.mmap(-1, 3 << 30):
        assert template.render(CHAT) == str(2**26)


def test_the_clock_stops_with_the_rendering(hurry: Hurry) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, "t")
    hurry(0.3)
    template.render(CHAT)
    began = time.process_time()
    while time.process_time() - began < 0.4:  # longer than a rendering may take
        sum(range(10_000))
    assert template.render(CHAT) == "abc"
