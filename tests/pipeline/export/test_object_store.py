"""Exports from and to an object store: the same bytes as in a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.export.driver import export
from packtrain.pipeline.export.options import FORMATS, export_options
from packtrain.pipeline.export.publish import publish
from packtrain.pipeline.export.verify import verify_export

pytest.importorskip("s3fs")
pytest.importorskip("moto")

from tests.support.faulty import BUCKET
from tests.support.hub_stand_in import taken_for_the_hub

pytestmark = [pytest.mark.xdist_group("exports"), pytest.mark.slow]


@pytest.mark.parametrize("to", [name for name in FORMATS if name != "olmo-core"])
def test_from_a_bucket_to_a_bucket(
    made: Callable[[str], Path],
    faulty: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    to: str,
) -> None:
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "scratch"))
    place, client = tmp_path.name, faulty.client()
    for path in made("bfd").rglob("*"):
        if path.is_file() and "_run" not in path.parts:
            client.upload_file(str(path), BUCKET, f"{place}/packed/{path.relative_to(made('bfd')).as_posix()}")
    here = export(made("bfd"), tmp_path / "here", export_options(to), workers=1).manifest
    far = f"s3://{BUCKET}/{place}/far"
    there = export(f"s3://{BUCKET}/{place}/packed", far, export_options(to), workers=1)
    assert there.manifest == here
    assert verify_export(far, deep=True).sound
    for file in here.files:
        assert faulty.get(f"{place}/far/{file.name}") == (tmp_path / "here" / file.name).read_bytes()
    assert not export(f"s3://{BUCKET}/{place}/packed", far, export_options(to), workers=1).changed
    damaged = f"{place}/packed/{sorted((made('bfd') / 'train' / 'shards').iterdir())[0].relative_to(made('bfd'))}"
    client.put_object(Bucket=BUCKET, Key=damaged, Body=b"x" * len(faulty.get(damaged)))
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "scratch-2"))
    with pytest.raises(ValueError, match="shards"):
        export(f"s3://{BUCKET}/{place}/packed", f"{far}-2", export_options(to), workers=1)
    assert not faulty.keys(f"{place}/far-2")


def test_from_a_bucket_to_the_hub(
    made: Callable[[str], Path], faulty: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as from a folder; the Hub is a stand-in."""
    place, client = tmp_path.name, faulty.client()
    for path in made("bfd").rglob("*"):
        if path.is_file() and "_run" not in path.parts:
            client.upload_file(str(path), BUCKET, f"{place}/packed/{path.relative_to(made('bfd')).as_posix()}")
    with taken_for_the_hub(monkeypatch, tmp_path) as hub:
        publish(made("bfd"), "hf://me/here", workers=1)
        done = publish(f"s3://{BUCKET}/{place}/packed", "hf://me/far", extras=["documents"], workers=1)
        held = hub.files("me/far")
        assert held.pop("documents.parquet") == (made("bfd") / "documents.parquet").read_bytes()
        card = hub.files("me/here")["README.md"].split(b"<!--")[0].replace(b"me/here", b"me/far")
        assert held.pop("README.md").split(b"<!--")[0] == card
        assert held == {name: data for name, data in hub.files("me/here").items() if name != "README.md"}
        assert done.listing.kept == ("rejects.jsonl", "manifest.json", "_run/")
