"""What a process holds besides a rendering is not the template's: it is looked at again before a row is stopped."""

import mmap

import pytest
from packtrain.pipeline.execute import template_watchdog as watchdog
from packtrain.stages.template.chat_template import ChatTemplate


def test_a_process_that_has_grown_meanwhile_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "ADDRESS_SPACE_GROWTH", 1 << 28)
    watchdog.watch_templates()
    template = ChatTemplate("{{ (messages[0].content[:1] * 2**26) | length }}", {}, "t")
    assert template.render([{"role": "user", "content": "abc"}]) == str(2**26)
    with mmap.mmap(-1, 3 << 30):
        assert template.render([{"role": "user", "content": "abc"}]) == str(2**26)
