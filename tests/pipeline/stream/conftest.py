"""Windows that are opened in this process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from packtrain.pipeline.stream.live_windows import LiveWindows


@pytest.fixture
def live() -> Iterator[Callable[..., LiveWindows]]:
    """`live(config, …)` takes the arguments of LiveWindows; closed at the end."""
    opened = []

    def open_windows(config: dict[str, Any], **more: Any) -> LiveWindows:
        opened.append(LiveWindows(config, **{"window_bytes": 24_000, "workers": 1, **more}))
        return opened[-1]

    yield open_windows
    for windows in opened:
        windows.close()
