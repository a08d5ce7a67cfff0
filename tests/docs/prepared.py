"""What the pages assume: small inputs, what runs over them leave, a tiny model; made here, the same each time."""

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packtrain.pipeline import demo
from packtrain.pipeline.run.run import run

from tests.support.faulty import Faulty
from tests.support.small_models import write_model

ROOT = Path(__file__).parents[2]
_WORDS = """
the mules left valley before sun was up nobody had told them how far it would be behind last houses road became path and
line of stones that someone laid out a long time ago def return for number in range print left right doesn't matter much
1 22 333 4444 über naïve water bridge winter bread answer question why because often never
"""
WORDS = _WORDS.split()


TRAINING = {
    "out": "runs/first",
    "model": "path/to/model",
    "data": "packed",
    "rows_per_step": 8,
    "trainer": {"max_steps": 2, "save_steps": 2, "logging_steps": 1},
}
"""`train.yaml`. YAML reads JSON."""


def prose(chance: random.Random, words: int) -> str:
    """So many words in sentences and paragraphs."""
    out = []
    while words > 0:
        length = min(words, chance.randrange(4, 15))
        sentence = " ".join(chance.choices(WORDS, k=length))
        out.append(sentence[:1].upper() + sentence[1:] + (".\n\n" if chance.random() < 0.1 else ". "))
        words -= length
    return "".join(out).strip()


def write_rows(path: Path, rows: list[Any]) -> None:
    """Write one JSON object a line; rows that are texts are written unchanged."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")


def inputs(folder: Path, mix: str) -> None:
    """The files that every page finds."""
    chance = random.Random(11)

    def length(middle: float, spread: float = 0.7) -> int:
        return max(3, int(chance.lognormvariate(0, spread) * middle))

    write_rows(folder / "chats.jsonl", [{"messages": _turns(chance, length)} for _ in range(130)])
    pairs: list[Any] = [
        {"question": prose(chance, length(45)) + "\n", "answer": prose(chance, length(60))} for _ in range(100)
    ]
    write_rows(folder / "pairs.jsonl", [*pairs[:60], '{"question": "cut off', *pairs[60:]])
    write_rows(folder / "docs.jsonl", [{"text": prose(chance, length(1_100))} for _ in range(33)])
    preferences = []
    for _ in range(60):
        prompt = [{"role": "user", "content": prose(chance, length(20))}]
        answers = [[{"role": "assistant", "content": prose(chance, length(20))}] for _ in range(2)]
        preferences.append({"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
    write_rows(folder / "preferences.jsonl", preferences)
    write_rows(folder / "train.jsonl", [_problem(chance, number, chance.randrange(1, 4)) for number in range(30)])
    write_rows(folder / "test.jsonl", [_problem(chance, number, 0) for number in range(30, 40)])
    shutil.copytree(Path(demo.__file__).parent / "tokenizer", folder / "tokenizer")
    (folder / "mix.yaml").write_text(mix)
    (folder / "train.yaml").write_text(json.dumps(TRAINING))
    (folder / "train.py").write_text("import sys\n\nprint('train on', *sys.argv[1:])\n")


def _turns(chance: random.Random, length: Callable[[float], int]) -> list[dict[str, str]]:
    turns = [{"role": "system", "content": prose(chance, 8)}] if chance.random() < 0.3 else []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        turns += [
            {"role": "user", "content": prose(chance, length(40))},
            {"role": "assistant", "content": prose(chance, length(60))},
        ]
    return turns


def _problem(chance: random.Random, number: int, solutions: int) -> dict[str, Any]:
    programs = [f"print(sum(map(int, input().split())) + {number + one})" for one in range(solutions)]
    return {
        "id": number,
        "question": prose(chance, 40),
        "solutions": json.dumps(programs) if programs else "",
        "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": [f"{3 + number}\n"]}),
        "difficulty": "introductory",
        "starter_code": "",
        "url": f"https://example.org/{number}",
    }


class Prepared:
    """Makes what a page may start with, each once, and copies it into the page's folder.

    `packed`: what `packtrain run mix.yaml` leaves; `other`: another small packed folder of the same tokenizer; `model`:
    a tiny model with random weights and its tokenizer, `path/to/model`. Besides, `hub` is a stand-in for the Hugging
    Face Hub, with a token of `me`, and `bucket` an object store, which holds `packed`, if that is wanted, too.
    """

    def __init__(self, root: Path, mix: str) -> None:
        self.root = root
        self.mix = mix
        self._made: set[str] = set()
        self.inputs = root / "inputs"
        self.inputs.mkdir()
        inputs(self.inputs, mix)
        # The first look at these inputs, once for all pages, because it takes a second.
        known = self._folder("packed") / ".packtrain-cache"
        shutil.copytree(known / "engines", self.inputs / known.name / "engines")

    def fill(self, folder: Path, starts: set[str]) -> None:
        """Copies the inputs and the requested items, except `bucket` and `hub`."""
        shutil.copytree(self.inputs, folder, dirs_exist_ok=True)
        for name in sorted(starts - {"bucket", "hub"}):
            shutil.copytree(self._folder(name), folder, dirs_exist_ok=True)
        checkout(folder)

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        if name not in self._made:
            folder.mkdir()
            getattr(self, f"_make_{name}")(folder)
            self._made.add(name)
        return folder

    def _make_packed(self, folder: Path) -> None:
        shutil.copytree(self.inputs, folder, dirs_exist_ok=True)
        run(folder / "mix.yaml")

    def _make_other(self, folder: Path) -> None:
        shutil.copytree(self._folder("packed"), folder, dirs_exist_ok=True)
        (folder / "other.yaml").write_text(self.mix.replace("out: packed", "out: other\nseed: 7"))
        run(folder / "other.yaml")
        shutil.rmtree(folder / "packed")

    def _make_model(self, folder: Path) -> None:
        write_model(folder / "path" / "to" / "model", tokenizer=self.inputs / "tokenizer", max_position_embeddings=4096)


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
