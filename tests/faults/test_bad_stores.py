"""Object stores that fail: the bytes of a run in a folder, or an error with the object's name; the next run goes on."""

import json
import random
from pathlib import Path

import pytest
from packtrain.schemas.errors import PacktrainError, StoreError

from tests.kit import Config, cli, merged, packed
from tests.support.faulty import BUCKET, Faulty
from tests.support.whole_run import Whole

pytest.importorskip("obstore")


class Far:
    """A run whose output and cache are on a store, in a place of their own."""

    def __init__(self, whole: Whole, faulty: Faulty, folder: Path) -> None:
        self.faulty, self.folder = faulty, folder
        self.place = f"{folder.parent.name}-{folder.name}"
        url = f"s3://{BUCKET}/{self.place}"
        far = {"out": f"{url}/out", "cache": f"{url}/cache", "run": {"report": False}}
        self.config: Config = merged(whole.copy(folder, "user"), far)
        self.hash = json.loads((whole.folder / "out" / "manifest.json").read_bytes())["hash"]

    def run(self) -> None:
        """Run, with the bytes of a run in a folder."""
        assert packed(self.config, self.folder).manifest.hash == self.hash

    def objects(self, name: str) -> list[str]:
        """The keys of what was put into `out` or `cache`."""
        return sorted(key for key in self.faulty.objects if key.startswith(f"{self.place}/{name}/"))


@pytest.fixture
def far(whole: Whole, faulty: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "work" / "user"))
    return Far(whole, faulty, tmp_path / "work")


@pytest.mark.slow
def test_a_store_on_its_worst_day(far: Far, faulty: Faulty) -> None:
    """A fifth of all requests fail, in every way, and listings are of yesterday."""
    faulty.rate, faulty.stale = 0.2, True
    far.run()
    assert sum(asked.fault != "ok" for asked in faulty.asked) > 5
    faulty.calm()
    assert cli("verify", far.config["out"], "--deep").code == 0


@pytest.mark.slow
def test_a_store_that_stops_answering_at_any_request(far: Far, faulty: Faulty) -> None:
    """The run ends with an error that names an object, nothing looks finished, and the next run goes on."""
    for after in range(3, 10_000, 97):

        def late(asked: object, after: int = after) -> bool:
            return len(faulty.asked) > after

        faulty.wanted, faulty.always = late, "503"
        try:
            far.run()
            break
        except StoreError as error:
            said = str(error)
        faulty.calm()
        assert f"s3://{BUCKET}/{far.place}" in said
        assert "run the same command again" in said
        if any(key.endswith("out/manifest.json") for key in far.objects("out")):
            # It is put last: what it names is there, and only the card failed.
            assert cli("verify", far.config["out"], "--deep").code == 0
    faulty.calm()
    far.run()
    assert cli("verify", far.config["out"], "--deep").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("which", ["out", "cache"])
def test_objects_that_are_damaged(far: Far, faulty: Faulty, which: str) -> None:
    """Each has one kind of damage. What `repair` or another run makes of it has the bytes of the first."""
    far.run()
    chance = random.Random(7)
    keys = far.objects(which)
    whole = {key: faulty.objects[key] for key in keys}
    for number, key in enumerate(keys[::3]):
        data, other = whole[key], whole[keys[(keys.index(key) + 1) % len(keys)]]
        changed = (_flipped(data, chance), None, data[: len(data) // 2], b"", other)[number % 5]
        if changed is None:
            del faulty.objects[key]
        else:
            faulty.objects[key] = changed
        if which == "out":
            repaired = cli("verify", far.config["out"], "--repair", _saved(far))
            assert repaired.code == 0 or _names(key, repaired.err), (key, number, repaired)
        else:
            for one in far.objects("out"):
                del faulty.objects[one]
        try:
            far.run()
        except PacktrainError as error:
            said = str(error)
            faulty.objects[key] = data
            far.run()
            assert _names(key, said), (key, number, said)
        if which == "out":
            assert cli("verify", far.config["out"], "--deep").code == 0, (key, number)


def _names(key: str, said: str) -> bool:
    """Whether an error names the object."""
    return Path(key).name in "".join(said.split())


def _flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _saved(far: Far) -> Path:
    path = far.folder / "config.json"
    path.write_text(json.dumps(far.config))
    return path
