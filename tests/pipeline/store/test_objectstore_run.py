"""A stream whose output and cache are on an object store."""

from pathlib import Path

import pytest
from packtrain.pipeline.stream.live_windows import LiveWindows

pytest.importorskip("obstore")

from tests import kit
from tests.support.faulty import BUCKET, Faulty


def test_a_stream_reads_the_parts_of_its_cache(tmp_path: Path, faulty: Faulty) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}"
    config = kit.configure(tmp_path, kit.source("texts", path=str(tmp_path / "texts.jsonl")))
    packed = kit.packed(config)
    far = kit.merged(config, {"out": f"{place}/out", "cache": f"{place}/cache"})
    windows = LiveWindows(far, workers=1)
    rows = sum(window.rows for window in windows.walk(0, 0, 1))
    windows.close()
    assert rows == packed.table().num_rows
    assert any("/cache/encoded/" in key for key in faulty.objects)
    assert not any("/out/" in key for key in faulty.objects)
