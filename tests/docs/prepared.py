"""What the pages assume: small inputs, what a run over them leaves, a tiny model; made here, the same each time."""

import json
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import kit
from tests.support.faulty import Faulty
from tests.support.small_models import write_model

ROOT = Path(__file__).parents[2]
TRAINING = {
    "out": "runs/first",
    "model": "path/to/model",
    "data": "packed",
    "rows_per_step": 8,
    "trainer": {"max_steps": 2, "save_steps": 2, "logging_steps": 1},
}
"""`train.yaml`. YAML reads JSON."""


def inputs(folder: Path, mix: str) -> None:
    """The files that every page finds."""
    chance = random.Random(11)
    kit.write(folder / "chats.jsonl", kit.corpus("chats", 110))
    pairs = kit.lines({"question": one["prompt"], "answer": one["completion"]} for one in kit.corpus("pairs"))
    (folder / "pairs.jsonl").write_bytes(pairs.replace(b"\n", b'\n{"question": "cut off\n', 1))
    kit.write(folder / "docs.jsonl", [{"text": kit.talk(chance, 1500)} for _ in range(24)])
    kit.write(folder / "preferences.jsonl", kit.corpus("choices"))
    kit.write(folder / "train.jsonl", [_problem(chance, number, chance.randrange(1, 4)) for number in range(30)])
    kit.write(folder / "test.jsonl", [_problem(chance, number, 0) for number in range(30, 40)])
    shutil.copytree(kit.demo_tokenizer(), folder / "tokenizer")
    (folder / "mix.yaml").write_text(mix)
    (folder / "train.yaml").write_text(json.dumps(TRAINING))
    (folder / "train.py").write_text("import sys\n\nprint('train on', *sys.argv[1:])\n")


def _problem(chance: random.Random, number: int, solutions: int) -> kit.Row:
    programs = [f"print(sum(map(int, input().split())) + {number + one})" for one in range(solutions)]
    return {
        "id": number,
        "question": kit.talk(chance),
        "solutions": json.dumps(programs) if programs else "",
        "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": [f"{3 + number}\n"]}),
        "difficulty": "introductory",
    }


class Prepared:
    """Makes what a page may start with, each once, and copies it into the page's folder.

    `packed`: what `packtrain run mix.yaml` leaves; `model`: a tiny model with random weights and its tokenizer,
    `path/to/model`. Besides, `hub` is a stand-in for the Hugging Face Hub, with a token of `me`, and `bucket` an object
    store, which holds `packed`, if that is wanted, too.

    Attributes:
        user: the user's cache after a first run, which knows the tokenizer.
    """

    def __init__(self, root: Path, mix: str) -> None:
        self._root, self.user = root, root / "user"
        self._inputs = root / "inputs"
        self._inputs.mkdir()
        inputs(self._inputs, mix)
        # The first look at these inputs, once for all pages, because it takes a second.
        known = self._folder("packed") / ".packtrain-cache"
        shutil.copytree(known / "engines", self._inputs / known.name / "engines")

    def fill(self, folder: Path, starts: set[str]) -> None:
        """Copies the inputs and the requested items, except `bucket` and `hub`."""
        shutil.copytree(self._inputs, folder, dirs_exist_ok=True)
        for name in sorted(starts - {"bucket", "hub"}):
            shutil.copytree(self._folder(name), folder, dirs_exist_ok=True)
        checkout(folder)

    def _folder(self, name: str) -> Path:
        folder = self._root / name
        if not folder.exists():
            getattr(self, f"_make_{name}")(folder)
        return folder

    def _make_packed(self, folder: Path) -> None:
        shutil.copytree(self._inputs, folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PACKTRAIN_CACHE", str(self.user))
            assert kit.cli("run", "mix.yaml", cwd=folder).code == 0

    def _make_model(self, folder: Path) -> None:
        write_model(folder / "path" / "to" / "model", max_position_embeddings=4096)


def checkout(folder: Path) -> None:
    """What `make demo` needs, installed already: the environment of the tests stands for the one it would make."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "packtrain"):
        (programs / name).symlink_to(Path(sys.executable).parent / name)
    (programs / "activate").write_text(f"PATH={programs}:$PATH\n")
    (programs.parent / ".demo").touch()


@contextmanager
def bucket(holds: Path | None = None) -> Iterator[dict[str, str]]:
    """An object store with a bucket named `bucket`, which holds a folder or nothing; the environment to find it."""
    files = [path for path in holds.rglob("*") if path.is_file()] if holds is not None else []
    with Faulty() as server:
        server.buckets["bucket"] = {f"packed/{path.relative_to(str(holds))}": path.read_bytes() for path in files}
        yield server.environment
