"""A template that fills the memory is stopped, and what it leaves behind stops nothing else."""

import mmap
import resource

import pytest
from packtrain.pipeline.execute import template_watchdog as watchdog
from packtrain.schemas.errors import StoppedTemplateError
from packtrain.schemas.rows import Messages
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer

CHAT: Messages = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def"}]
LARGE = "{{ 'a' * 10**10 }}"


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renderings are watched, and may take less memory than usual."""
    monkeypatch.setattr(watchdog, "SPACE_GROWTH", 1 << 28)
    watchdog.watch_templates()


def test_other_rows_are_rendered_and_the_limit_is_lifted() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    source = "{% if messages[0].content == 'bad' %}" + LARGE + "{% endif %}{{ messages[0].content }}"
    renderer = Renderer(ChatTemplate(source, {}, "attack"), allow_lost=["assistant"])
    assert renderer(CHAT, []).text == "abc"
    with pytest.raises(StoppedTemplateError, match="'attack' was stopped"):
        renderer([{"role": "user", "content": "bad"}], [])
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert renderer(CHAT, []).text == "abc"


def test_a_process_that_has_grown_meanwhile_is_no_limit() -> None:
    template = ChatTemplate("{{ (messages[0].content[:1] * 2**26) | length }}", {}, "t")
    assert template.render(CHAT) == str(2**26)
    with mmap.mmap(-1, 3 << 30):
        assert template.render(CHAT) == str(2**26)
