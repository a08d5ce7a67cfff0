"""Inputs and parts of a run on an object store: workers elsewhere, signatures, and a stream's scratch folder."""

import gzip
from pathlib import Path

import pytest
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.elsewhere import here, origin_of
from packtrain.pipeline.inputs.read import prepare_block
from packtrain.pipeline.inputs.scan_cache import scan_inputs
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.config.config import SourceConfig
from packtrain.stages.prep import Options, make_format

pytest.importorskip("obstore")

from tests import kit
from tests.support.faulty import BUCKET, Faulty


def scanned(path: str, folder: Path, cache: Path) -> list[InputFile]:
    return scan_inputs([SourceConfig(name="one", format="text", path=(path,))], folder, LocalStore(cache))


def test_a_worker_elsewhere_has_inputs_from_their_url(faulty: Faulty, tmp_path: Path) -> None:
    lines = kit.lines(kit.corpus("texts", 50))
    faulty.objects[f"{tmp_path.name}/a.jsonl"] = lines
    faulty.objects[f"{tmp_path.name}/b.jsonl.gz"] = gzip.compress(lines)
    form = make_format("text", Options())
    for name in ("a.jsonl", "b.jsonl.gz"):
        (file,) = scanned(f"s3://{BUCKET}/{tmp_path.name}/{name}", tmp_path, tmp_path / "there")
        block, origin = file.blocks[0], origin_of(file, 1 << 24)
        wanted = prepare_block(file.where(block), block, form, 1 << 24)
        (tmp_path / "there").rename(tmp_path / f"gone-{name}")
        path = here(file.where(block), block, origin, tmp_path / "scratch")
        assert path.is_relative_to(tmp_path / "scratch")
        assert prepare_block(path, block, form, 1 << 24) == wanted
        faulty.asked.clear()
        assert here(file.where(block), block, origin, tmp_path / "scratch") == path
        assert not [asked for asked in faulty.asked if asked.method == "GET"]


def test_a_signature_goes_into_no_task(tmp_path: Path, faulty: Faulty) -> None:
    faulty.objects["a.jsonl"] = b'{"text": "one"}\n'
    signed = f"{faulty.address}/{BUCKET}/a.jsonl?X-Amz-Signature=0"
    (file,) = scanned(signed, tmp_path, tmp_path / "cache")
    assert "Signature" not in str(file) + str(origin_of(file, 1))
    assert origin_of(file, 1).url == ""


def test_a_stream_keeps_its_parts_in_the_scratch_folder(tmp_path: Path, faulty: Faulty) -> None:
    place, scratch = f"s3://{BUCKET}/{tmp_path.name}", tmp_path / "scratch"
    config = kit.configure(tmp_path, kit.source("texts", path=str(tmp_path / "texts.jsonl")))
    packed = kit.packed(config)
    far = kit.merged(config, {"out": f"{place}/out", "cache": f"{place}/cache", "run": {"scratch": str(scratch)}})
    windows = LiveWindows(far, workers=0)
    rows = sum(window.rows for window in windows.walk(0, 0, 1))
    windows.close()
    assert rows == packed.table().num_rows
    assert list((scratch / "encoded").rglob("*.arrow"))
    assert faulty.asked == []
