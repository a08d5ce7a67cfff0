"""Whole runs on an object store: the same bytes as in a folder, whatever the store does meanwhile."""

import gzip
import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.elsewhere import here, origin_of
from packtrain.pipeline.inputs.read import prepare_block
from packtrain.pipeline.inputs.scan_cache import scan_inputs
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.config.config import SourceConfig
from packtrain.stages.prep import Options, make_format

pytest.importorskip("obstore")
pytest.importorskip("moto")

from tests.support import warm
from tests.support.faulty import BUCKET, Faulty


@dataclass(frozen=True)
class Corpus:
    """Some small inputs, and what a run in a folder makes of them."""

    config: dict[str, Any]
    manifest: bytes

    def at(self, scratch: Path, out: str = "run", **more: Any) -> dict[str, Any]:
        """The same on the object store. Each caller has a bucket's folder and a scratch folder of its own."""
        place = f"s3://{BUCKET}/{scratch.parent.name}"
        run = {**self.config["run"], "scratch": str(scratch)}
        return {**self.config, "out": f"{place}/{out}", "cache": f"{place}/cache", "run": run, **more}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Corpus:
    folder = tmp_path_factory.mktemp("inputs")
    chance = random.Random(2)
    words = ["the", "mules", "left", "valley", "before", "sun", "def", "return", "1", "22", "333", "über", "中文", "🙂"]
    names = [str(folder / f"{number:02d}.jsonl") for number in range(8)]
    for name in names:
        rows = [{"text": " ".join(chance.choices(words, k=chance.randrange(5, 200)))} for _ in range(60)]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config: dict[str, Any] = {
        "out": str(folder / "out"),
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        # One for each file, so that the files are not joined.
        "sources": [{"name": f"words-{number}", "format": "text", "path": name} for number, name in enumerate(names)],
        "truncate": {"max_length": 256},
        "output": {"shard_bytes": "128KiB"},
        "run": {"workers": 1, "report": False},
    }
    packtrain.run(config)
    return Corpus(config, (folder / "out" / "manifest.json").read_bytes())


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A scratch folder with nothing in it."""
    return tmp_path / "scratch"


def written(faulty: Faulty, config: dict[str, Any]) -> bytes:
    return faulty.get(f"{config['out'].partition(BUCKET + '/')[2]}/manifest.json")


@pytest.mark.slow
def test_the_same_bytes_as_in_a_folder(corpus: Corpus, scratch: Path, faulty: Faulty) -> None:
    config = corpus.at(scratch)
    manifest = packtrain.run(config)
    assert written(faulty, config) == corpus.manifest
    sound = verify(config["out"], deep=True)
    assert (sound.sound, sound.rows) == (True, manifest.splits["train"].rows)
    card = faulty.get(f"{config['out'].partition(BUCKET + '/')[2]}/README.md")
    assert card == Path(corpus.config["out"], "README.md").read_bytes()
    local, far = open_dataset(corpus.config["out"]), open_dataset(config["out"])
    for index in (0, sound.rows - 1):
        assert far.row(index).equals(local.row(index))
    # Again: it is finished, which takes one request a shard, and no put.
    faulty.asked.clear()
    assert packtrain.run(config).hash == manifest.hash
    assert {asked.method for asked in faulty.asked} <= {"GET", "HEAD"}
    # Another run shares what is encoded; and the copies that this machine has are not fetched.
    faulty.asked.clear()
    other = corpus.at(scratch, "other", truncate={"max_length": 128})
    assert packtrain.run(other).hash != manifest.hash
    assert not [asked for asked in faulty.asked if asked.method == "PUT" and "/cache/encoded/" in asked.path]
    assert not [
        asked
        for asked in faulty.asked
        if asked.method == "GET" and "/cache/encoded/" in asked.path and ".arrow" in asked.path
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["encode", "pack"])
def test_a_run_that_is_killed_goes_on(
    corpus: Corpus, scratch: Path, faulty: Faulty, tmp_path: Path, stage: str
) -> None:
    config = corpus.at(scratch)
    config["run"]["workers"] = 2
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    faulty.latency = 0.03
    command = ["run", tmp_path / "run.yaml"]
    process = warm.Process(command)
    pattern = "/cache/encoded/" if stage == "encode" else "/run/_run/shards/"
    end = time.monotonic() + 600
    while len([one for one in list(faulty.asked) if one.method == "PUT" and pattern in one.path]) < 6:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    faulty.latency, faulty.stale = 0.0, True
    assert not any(key.endswith("run/manifest.json") for key in faulty.keys(scratch.parent.name))
    done = warm.run(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert written(faulty, config) == corpus.manifest
    faulty.calm()
    assert verify(config["out"], deep=True).sound
    assert not list(scratch.rglob(".tmp-*"))


# Workers of other machines


def scanned(path: str, folder: Path, cache: Path) -> list[InputFile]:
    return scan_inputs([SourceConfig(name="one", format="text", path=(path,))], folder, LocalStore(cache))


def test_a_worker_elsewhere_has_inputs_from_their_url(faulty: Faulty, tmp_path: Path) -> None:
    lines = b"".join(json.dumps({"text": f"row {number}"}).encode() + b"\n" for number in range(50))
    bucket = faulty.client()
    bucket.put_object(Bucket=BUCKET, Key=f"{tmp_path.name}/a.jsonl", Body=lines)
    bucket.put_object(Bucket=BUCKET, Key=f"{tmp_path.name}/b.jsonl.gz", Body=gzip.compress(lines))
    form = make_format("text", Options())
    for name in ("a.jsonl", "b.jsonl.gz"):
        (file,) = scanned(f"s3://{BUCKET}/{tmp_path.name}/{name}", tmp_path, tmp_path / "there")
        block, origin = file.blocks[0], origin_of(file, 1 << 24)
        wanted = prepare_block(file.where(block), block, form, 1 << 24)
        (tmp_path / "there").rename(tmp_path / f"gone-{name}")
        path = here(
            file.where(block),
            block,
            origin,
            tmp_path / "scratch",
        )
        assert path.is_relative_to(tmp_path / "scratch")
        assert prepare_block(path, block, form, 1 << 24) == wanted
        faulty.asked.clear()
        assert here(file.where(block), block, origin, tmp_path / "scratch") == path
        assert not [asked for asked in faulty.asked if asked.method == "GET"]


def test_a_signature_goes_into_no_task(tmp_path: Path, faulty: Faulty) -> None:
    faulty.client().put_object(Bucket=BUCKET, Key=f"{tmp_path.name}/a.jsonl", Body=b'{"text": "one"}\n')
    signed = faulty.client().generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": f"{tmp_path.name}/a.jsonl"})
    (file,) = scanned(signed, tmp_path, tmp_path / "cache")
    assert "Signature" not in str(file) + str(origin_of(file, 1))
    assert origin_of(file, 1).url == ""


def test_a_stream_keeps_its_parts_in_the_scratch_folder(corpus: Corpus, scratch: Path, faulty: Faulty) -> None:
    windows = LiveWindows(corpus.at(scratch), workers=0)
    rows = sum(window.rows for window in windows.walk(0, 0, 1))
    windows.close()
    assert rows == json.loads(corpus.manifest)["splits"]["train"]["windows"][0]["rows"]
    assert list((scratch / "encoded").rglob("*.arrow"))
    assert faulty.asked == []
