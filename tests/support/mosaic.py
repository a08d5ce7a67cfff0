"""mosaicml-streaming without its datasets of pictures."""

import importlib.util
import sys
import types

import pytest


def need_streaming() -> None:
    """Make `streaming.base` importable, or skip the test."""
    spec = importlib.util.find_spec("streaming")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("mosaicml-streaming is not installed")
    if "streaming" not in sys.modules:
        # Its own __init__ imports torchvision for its image datasets.
        package = types.ModuleType("streaming")
        package.__path__, package.__spec__ = list(spec.submodule_search_locations), spec
        sys.modules["streaming"] = package
