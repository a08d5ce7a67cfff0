"""Files that are damaged: a run, `verify` or `repair` gives the bytes of an undisturbed run, or an error that names the
file.

Files are found by walking what a run left, so that new kinds of files are covered as soon as they are written.
"""

import os
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import PacktrainError

from tests.kit import Config, cli, packed, saved, tree
from tests.support.hostile import patience
from tests.support.whole_run import Whole

# Files


def cut(data: bytes, beside: bytes, chance: random.Random) -> bytes:
    """Half of it."""
    return data[: len(data) // 2]


def flipped(data: bytes, beside: bytes, chance: random.Random) -> bytes:
    """One bit is another."""
    changed = bytearray(data)
    if changed:
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def empty(data: bytes, beside: bytes, chance: random.Random) -> bytes:
    """Nothing."""
    return b""


def exchanged(data: bytes, beside: bytes, chance: random.Random) -> bytes:
    """The content of a neighbour, which has its own in turn."""
    return beside


CONTENTS = {one.__name__: one for one in (cut, flipped, empty, exchanged)}
DAMAGES = (*CONTENTS, "fifo", "link", "gone")
QUICK = ("cut", "gone")
"""Those of the quick tests."""


def files_below(folder: Path, *names: str) -> list[Path]:
    """What a run left in some folders. Files that only hold a lock or mark a folder have no content to damage."""
    found = (path.relative_to(folder) for name in names for path in sorted((folder / name).rglob("*")))
    kept = (path for path in found if not path.name.startswith("."))
    return [path for path in kept if (folder / path).is_file()]


def neighbour(path: Path, files: list[Path]) -> Path | None:
    """The next file of the same kind: in the same folder, or else with the same parent's name elsewhere."""
    alike = [one for one in files if one.suffix == path.suffix and one.parts[:2] == path.parts[:2]]
    return alike[(alike.index(path) + 1) % len(alike)] if len(alike) > 1 else None


def damage(folder: Path, path: Path, how: str, files: list[Path]) -> bool:
    """Damage one file below a folder. Returns False where that leaves it as it was."""
    place, chance = folder / path, random.Random(f"{path.suffix} {how}")
    data = place.read_bytes()
    if how in CONTENTS:
        other = neighbour(path, files) if how == "exchanged" else None
        beside = (folder / other).read_bytes() if other else data
        changed = CONTENTS[how](data, beside, chance)
        place.write_bytes(changed)
        if other:
            (folder / other).write_bytes(data)
        return changed != data
    if how == "link":
        (folder / "outside").mkdir()
        place.rename(folder / "outside" / place.name)
        place.symlink_to(folder / "outside" / place.name)
        return True
    place.unlink()
    if how == "fifo":
        os.mkfifo(place)
    return True


def turns(how: str, files: list[Path], share: int) -> list[Path]:
    """The files that have this damage: in each share, every file has one, and those beside it have others."""
    turn = DAMAGES.index(how) + 3 * share
    return [path for number, path in enumerate(files) if (number - turn) % len(DAMAGES) == 0]


each_damage = pytest.mark.parametrize(
    ("whole", "how", "share"),
    [
        *(("documents", how, 0) for how in QUICK),
        *(pytest.param("documents", how, 0, marks=pytest.mark.slow) for how in DAMAGES if how not in QUICK),
        *(pytest.param("choices", how, 1, marks=pytest.mark.slow) for how in ("cut", "exchanged", "link")),
    ],
    indirect=["whole"],
)


def names_one(error: str, path: Path, files: list[Path], how: str) -> bool:
    """Whether an error names the damaged file, its neighbour where they were exchanged, or the whole output."""
    damaged = [path, neighbour(path, files)] if how == "exchanged" else [path]
    flat = re.sub(r"\s", "", error)
    names = [Path(*one.parts[1:]).as_posix() for one in damaged if one is not None]
    return any(name in flat for name in names) or bool(re.search(r"/out(?!/).*(deletethis|movei?t?away)", flat))


def outside(folder: Path) -> dict[str, bytes]:
    """What a link leads to."""
    return {path.name: path.read_bytes() for path in (folder / "outside").glob("*")}


class Damaged:
    """Each file of some folders in turn, damaged in a copy of its own."""

    def __init__(self, whole: Whole, tmp_path: Path, patch: pytest.MonkeyPatch, how: str, share: int) -> None:
        self.whole, self.tmp_path, self.patch, self.how, self.share = whole, tmp_path, patch, how, share
        self.wrong: list[tuple[str, Any]] = []

    def copies(self, names: Iterable[str], kept: Iterable[str]) -> Iterator[tuple[Path, Config, Path, list[Path]]]:
        """A folder, its configuration, the file that is damaged in it, and all files: of `names`, beside `kept`."""
        files = files_below(self.whole.folder, *names)
        assert files
        for number, path in enumerate(turns(self.how, files, self.share)):
            folder = self.tmp_path / str(number)
            config = self.whole.copy(folder, *names, *kept)
            self.patch.setenv("PACKTRAIN_CACHE", str(folder / "user"))
            yield folder, config, path, files
            shutil.rmtree(folder)

    def told(self, path: Path, what: object) -> None:
        """Note what is wrong, and go on with the other files."""
        self.wrong.append((str(path), what))


def finishes(config: Config, damaged: Damaged, path: Path, files: list[Path]) -> None:
    """A run gives the bytes of an undisturbed one; or it names the file, and gives them without it or the output."""
    out = Path(config["out"])
    before = outside(out.parent)
    for forget in (None, out.parent / path, out):
        if forget is not None:
            shutil.rmtree(forget) if forget.is_dir() else forget.unlink(missing_ok=True)
        try:
            with patience():
                packed(config)
            break
        except PacktrainError as error:
            if not names_one(str(error), path, files, damaged.how):
                damaged.told(path, str(error))
    if tree(out) != damaged.whole.files:
        damaged.told(path, "other bytes")
    if outside(out.parent) != before:
        damaged.told(path, "was written through")


@each_damage
def test_a_run_goes_on_from_a_damaged_output(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, share: int
) -> None:
    damaged = Damaged(whole, tmp_path, monkeypatch, how, share)
    for folder, config, path, files in damaged.copies(["out"], ["cache", "user"]):
        # The manifest is what makes an output finished.
        if path.name != "manifest.json" and damage(folder, path, how, files):
            (folder / "out" / "manifest.json").unlink()
            finishes(config, damaged, path, files)
    assert damaged.wrong == []


@each_damage
def test_a_run_does_without_a_damaged_cache(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, share: int
) -> None:
    damaged = Damaged(whole, tmp_path, monkeypatch, how, share)
    for folder, config, path, files in damaged.copies(["cache", "user"], []):
        if damage(folder, path, how, files):
            finishes(config, damaged, path, files)
    assert damaged.wrong == []


@each_damage
def test_damage_of_a_finished_dataset_is_found_and_repaired(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, share: int
) -> None:
    damaged = Damaged(whole, tmp_path, monkeypatch, how, share)
    for folder, config, path, files in damaged.copies(["out"], ["cache", "user"]):
        if not damage(folder, path, how, files):
            continue
        before = outside(folder)
        counts = Path(*path.parts[1:]).as_posix() in whole.files
        with patience():
            found = cli("verify", folder / "out", "--deep")
            repaired = cli("verify", folder / "out", "--repair", saved(config))
        if (found.code != 0) < counts or (found.code and not names_one(found.out + found.err, path, files, how)):
            damaged.told(path, found)
        if repaired.code and not names_one(repaired.err, path, files, how):
            damaged.told(path, repaired)
        if repaired.code == 0 and tree(folder / "out") != whole.files:
            damaged.told(path, "other bytes")
        if repaired.code == 0 and cli("verify", folder / "out", "--deep").code:
            damaged.told(path, "is not sound afterwards")
        if outside(folder) != before:
            damaged.told(path, "was written through")
    assert damaged.wrong == []
