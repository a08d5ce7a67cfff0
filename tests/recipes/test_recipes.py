"""The recipes of CONTRIBUTING.md are followed in a scratch copy, with the files that they name and no other, and a
program uses what was added from beginning to end.
"""

import json
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from tests import kit
from tests.recipes.scratch import Scratch, files_of


class Recipe(NamedTuple):
    """A recipe, and one thing that is added by it."""

    name: str
    """What stands for `<name>` in the recipe."""
    edits: dict[str, str | list[tuple[str, str]]]
    program: str
    """Has `config`: chats, texts and pairs, in the file `config.json`."""


POLICY = Recipe(
    "questions",
    {
        "schemas/tables/masks.py": [
            (
                '        Policy("all",',
                '        Policy("questions", "everything before the completion", "models of users"),\n'
                '        Policy("all",',
            )
        ],
        "stages/mask/policy.py": [
            (
                '    "all": tuple(SpanKind),',
                '    "questions": (SpanKind.TEXT, SpanKind.PROMPT, SpanKind.USER),\n    "all": tuple(SpanKind),',
            )
        ],
    },
    """
    config |= {"mask": "questions", "sources": config["sources"][2:]}
    packtrain.run(config)
    rows = packtrain.open("out").rows().to_pylist()
    labels = [label for row in rows for label in row["labels"]]
    config |= {"mask": "completion", "out": "completions"}
    packtrain.run(config)
    others = [label for row in packtrain.open("completions").rows().to_pylist() for label in row["labels"]]
    assert len(labels) == len(others) and any(label != -100 for label in labels)
    assert not any(left != -100 and right != -100 for left, right in zip(labels, others))
    assert "everything before the completion" in open("out/README.md").read()
    from packtrain.pipeline.cli import options
    assert "questions" in options.Mask.__metadata__[0].help
    """,
)
COLUMN = Recipe(
    "doc_numbers",
    {
        "schemas/tables/columns.py": [
            (
                '    RowColumn(\n        "doc_ids",\n        pa.int64(),\n        Per.PIECE,',
                '    RowColumn("doc_numbers", pa.int16(), Per.TOKEN, "which document of the row, from 0"),\n'
                '    RowColumn(\n        "doc_ids",\n        pa.int64(),\n        Per.PIECE,',
            )
        ],
        "stages/pack/row_columns.py": [
            (
                '    "doc_ids": lambda tokens: tokens.pieces.doc_ids,\n',
                '    "doc_numbers": _doc_numbers,\n    "doc_ids": lambda tokens: tokens.pieces.doc_ids,\n',
            ),
            (
                "VALUES: dict[str,",
                "def _doc_numbers(tokens: RowTokens) -> NDArray[np.int16]:\n"
                "    pieces = np.diff(tokens.pieces.row_offsets)\n"
                "    numbers = np.arange(len(tokens.lengths)) - np.repeat(tokens.pieces.row_offsets[:-1], pieces)\n"
                "    return np.repeat(numbers, tokens.lengths).astype(np.int16)\n\n\nVALUES: dict[str,",
            ),
        ],
    },
    """
    packtrain.run(config)
    for row in packtrain.open("out").rows().to_pylist():
        expected = [number for number, length in enumerate(row["seq_lengths"]) for _ in range(length)]
        assert row["doc_numbers"] == expected
    assert not packtrain.verify("out", deep=True).findings
    assert "which document of the row, from 0" in open("out/README.md").read()
    from packtrain.schemas.dataset.reader import DatasetReader
    packtrain.export("out", "trl", "exported")
    import pyarrow.parquet as pq
    assert "doc_numbers" in pq.read_schema(next(Path("exported/data").iterdir())).names
    """,
)
FILE_KIND = Recipe(
    "json_sequence",
    {
        "pipeline/inputs/file_kinds.py": [
            ('    TEXT = "text"\n', '    TEXT = "text"\n    JSON_SEQUENCE = "JSON text sequence"\n'),
            (
                '    FileKind(Container.TEXT, (".txt",), is_text=True),\n',
                '    FileKind(Container.TEXT, (".txt",), is_text=True),\n'
                '    FileKind(Container.JSON_SEQUENCE, (".json-seq",), is_text=True),\n',
            ),
        ],
        "pipeline/inputs/spool.py": [
            (
                "LINES: ",
                'def _sequence(stream: "BufferedReader[Any]", shown: str, max_row_bytes: int) -> Iterator[bytes]:\n'
                '    """RFC 7464: a record separator before each text, a line end after it."""\n'
                "    while line := stream.readline():\n"
                '        yield line.removeprefix(b"\\x1e")\n\n\nLINES: ',
            ),
            ('Iterable[bytes]]]" = {\n', 'Iterable[bytes]]]" = {\n    Container.JSON_SEQUENCE: _sequence,\n'),
        ],
    },
    """
    texts = open("texts.jsonl", "rb").read()
    open("texts.json-seq", "wb").write(b"".join(b"\\x1e" + line for line in texts.splitlines(keepends=True)))
    lines = packtrain.run(config | {"sources": [{"name": "texts", "path": "texts.jsonl"}]})
    source = {"name": "texts", "path": "texts.json-seq"}
    sequence = packtrain.run(config | {"sources": [source], "out": "sequence"})
    assert sequence.ledger.total().rows_read == lines.ledger.total().rows_read > 50
    assert packtrain.open("sequence").rows().equals(packtrain.open("out").rows())
    """,
)
FORUM = '''
"""Threads of a forum: a question and its best answer."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example
from .base import Format
from .columns import Column, Columns


class ForumFormat(Format):
    """Questions and answers."""

    name = "forum"
    columns: ClassVar[Columns] = {"asked": Column(str, required=True), "best": Column(str, required=True)}

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """See `Format.examples`. Rejects `empty`."""
        if not row.best:
            raise RowRejectedError("empty", f"`{self.keys['best']}` is empty")
        return [Example(line, -1, "", row.asked, row.best, None)]
'''
ROW_FORMAT = Recipe(
    "forum",
    {
        "stages/prep/forum.py": FORUM,
        "stages/prep/__init__.py": [
            ("from .messages import", "from .forum import ForumFormat\nfrom .messages import"),
            ("        AppsFormat,\n", "        AppsFormat,\n        ForumFormat,\n"),
        ],
        "schemas/tables/row_formats.py": [
            (
                '        RowFormat("text",',
                '        RowFormat("forum", "a question and its best answer", ("asked", "best"), ("mask",)),\n'
                '        RowFormat("text",',
            )
        ],
    },
    """
    rows = [{"asked": f"Is {number} even?", "best": "Yes." if number % 2 == 0 else "No."} for number in range(20)]
    with open("threads.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\\n" for row in [*rows, {"asked": "Why?", "best": ""}])
    ledger = packtrain.run(config | {"sources": [{"name": "threads", "path": "threads.jsonl"}]}).ledger.total()
    assert (ledger.rows_used, ledger.rows_rejected) == (20, {"empty": 1})
    """,
)
STRATEGY = Recipe(
    "next_fit",
    {
        "stages/pack/next_fit.py": '''
            """Rows in the order of the documents: each takes the next ones as long as they fit."""

            from typing import Any

            import numpy as np
            from numpy.typing import NDArray

            from .best_fit import Placement


            def next_fit(
                sizes: NDArray[np.integer[Any]], counts: NDArray[np.int64], max_docs: int | None
            ) -> Placement:
                """See `plan_rows.Placing.place`."""
                offsets = [0]
                space = len(counts) - 1
                for index, size in enumerate(sizes.tolist()):
                    if size > space or index - offsets[-1] == max_docs:
                        offsets.append(index)
                        space = len(counts) - 1
                    space -= size
                return Placement(np.arange(len(sizes)), np.array([*offsets, len(sizes)] if len(sizes) else [0]))
            ''',
        "schemas/tables/strategies.py": [
            (
                '        Strategy("none",',
                '        Strategy("next_fit", "in the order of the documents", fuller="bfd"),\n'
                '        Strategy("none",',
            )
        ],
        "stages/pack/plan_rows.py": [
            ("from .tight import", "from .next_fit import next_fit\nfrom .tight import"),
            ('    "none": Placing(', '    "next_fit": Placing(next_fit),\n    "none": Placing('),
        ],
    },
    """
    config |= {"pack": {"strategy": "next_fit", "shuffle": False}}
    packtrain.run(config | {"run": {"report": True}})
    ids = [id for row in packtrain.open("out").rows()["doc_ids"].to_pylist() for id in row]
    assert ids == sorted(ids) and not packtrain.verify("out", deep=True).findings
    window = packtrain.open("out").splits["train"].windows[0]
    assert window.bound <= window.rows
    assert "next_fit" in open("out/report.html").read()
    """,
)
HASH = Recipe(
    "",
    {
        "schemas/fingerprint.py": [
            (
                "    from blake3 import blake3  # here, so that processes that never hash do not need it\n\n"
                "    return blake3(data)\n",
                "    from hashlib import sha256\n\n    return sha256(data)\n",
            )
        ]
    },
    """
    from hashlib import sha256
    packtrain.run(config)
    manifest = packtrain.open("out").manifest
    for file in manifest.all_files:
        assert sha256(open(f"out/{file.name}", "rb").read()).hexdigest() == file.hash
    assert not packtrain.verify("out", deep=True).findings
    again = packtrain.run(config | {"out": "again"})
    assert again.hash == manifest.hash
    """,
)
TOKEN_WEIGHTS = Recipe(
    "",
    {
        "stages/prep/text_and_ids.py": [
            (
                "        if row.loss_weights is not None and "
                "any(weight not in (0, 1) for weight in row.loss_weights):\n"
                '            raise RowRejectedError("weight", '
                'f"`{WEIGHTS}` has weights of single tokens, and only a row can have one")\n',
                "        weight = 1.0 if row.loss_weights is None else np.array(row.loss_weights, np.float32)\n",
            ),
            (
                "ids=ids, trained=trained_or_all)",
                "ids=ids, trained=trained_or_all, weight=weight)",
            ),
        ],
        "schemas/rows.py": [
            ("    weight: float = 1.0\n", '    weight: "float | NDArray[np.floating[Any]]" = 1.0\n'),
        ],
        "stages/tokenize/encode.py": [
            (
                '    weight_bytes = b"" if weight == 1 else repr(weight).encode()\n',
                '    weight_bytes = b"" if np.all(weight == 1) else np.asarray(weight).tobytes()\n',
            ),
            (
                "    if flags is None or not length:\n",
                "    if np.ndim(weight) and length:\n"
                "        flags = np.ones(length, np.bool_) if flags is None else flags\n"
                "        changes = (flags[1:] != flags[:-1]) | (weight[1:] != weight[:-1])\n"
                "        ends = np.append(np.flatnonzero(changes) + 1, length)\n"
                "        kinds = [SpanKind.COMPLETION if flag else SpanKind.PROMPT for flag in flags[ends - 1]]\n"
                "        weights = tuple(weight[ends - 1].tolist())\n"
                "        return Spans(tuple(ends.tolist()), tuple(kinds), (NO_TURN,) * len(ends), weights)\n"
                "    if flags is None or not length:\n",
            ),
        ],
        "pipeline/encode/spec.py": [("\nFORMAT = ", "\nFORMAT = 1000 + ")],
    },
    """
    rows = [
        {"input_ids": [5, 6, 7, 8, number], "labels": [-100, 6, 7, 8, number], "loss_weights": [0, 1, 2, 2, 0.5]}
        for number in range(10, 40)
    ]
    with open("ids.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\\n" for row in rows)
    packtrain.run(config | {"sources": [{"name": "ids", "path": "ids.jsonl", "format": "tokenized"}]})
    weights = [weight for row in packtrain.open("out").rows()["loss_weights"].to_pylist() for weight in row]
    assert weights == [0, 1, 2, 2, 0.5] * 30
    assert not packtrain.verify("out", deep=True).findings
    """,
)
STORE = Recipe(
    "tree_store",
    {
        "pipeline/store/tree_store.py": '''
            """A folder under a URL of its own, whose files lie in folders by the first letter of their names."""

            from pathlib import Path

            from .local import LocalStore


            class TreeStore(LocalStore):
                """See `LocalStore`."""

                def __init__(self, url: str) -> None:
                    super().__init__(Path(url.partition("://")[2]))

                @property
                def url(self) -> str:
                    return f"tree://{self.root}"
            ''',
        "pipeline/store/open_store.py": [
            (
                "dict.fromkeys(STORE_PROTOCOLS, ObjectStore)\n",
                'dict.fromkeys(STORE_PROTOCOLS, ObjectStore) | {"tree": TreeStore}\n',
            ),
            (
                "from .object_store import ObjectStore\n",
                "from .object_store import ObjectStore\nfrom .tree_store import TreeStore\n",
            ),
        ],
    },
    """
    here = Path.cwd()
    manifest = packtrain.run(config | {"out": f"tree://{here}/in-tree", "cache": f"tree://{here}/cache-tree"})
    assert packtrain.run(config).hash == manifest.hash
    assert (here / "in-tree/manifest.json").exists()
    assert not packtrain.verify(f"tree://{here}/in-tree", deep=True).findings
    """,
)
ENGINE = Recipe(
    "onebyone",
    {
        "schemas/tables/engines.py": [
            (
                '        TokenizerEngine("fastokens"',
                '        TokenizerEngine("onebyone"),\n        TokenizerEngine("fastokens"',
            )
        ],
        "stages/tokenize/engines.py": [
            (
                "Engine: TypeAlias = ",
                "class OneByOneEngine:\n"
                '    name = "onebyone"\n'
                "    byte_lengths = None\n\n"
                "    def __init__(self, tokenizer_json: str) -> None:\n"
                "        self._tokenizer = reference_tokenizer(tokenizer_json)\n\n"
                "    def encode(self, texts: Sequence[str]) -> EngineTokens:\n"
                "        ids = [self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts]\n"
                "        flat = np.fromiter(chain.from_iterable(ids), np.int32)\n"
                "        return EngineTokens(flat, offsets_of(lengths_of(ids)))\n\n\n"
                "Engine: TypeAlias = OneByOneEngine | ",
            ),
            ("for engine in (FastokensEngine,", "for engine in (OneByOneEngine, FastokensEngine,"),
        ],
    },
    """
    folder = Path(packtrain.__file__).parents[1] / "onebyone-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: onebyone\\nVersion: 1.0\\n")
    packtrain.run(config)
    plan = packtrain.open("out").manifest.plan
    assert (plan["encode"]["engine"], plan["encode"]["engine_version"]) == ("onebyone", "1.0")
    packtrain.run(config | {"out": "reference", "tokenizer": config["tokenizer"] | {"engine": "tokenizers"}})
    assert packtrain.open("out").rows().equals(packtrain.open("reference").rows())
    """,
)
ORDER = Recipe(
    "reversed",
    {
        "training/order.py": [
            (
                '    SEQUENTIAL = "sequential"\n',
                '    REVERSED = "reversed"\n    """The last row first."""\n    SEQUENTIAL = "sequential"\n',
            ),
            (
                "    Order.SEQUENTIAL: _as_stored,\n",
                "    Order.REVERSED: lambda places, epoch: epoch.size - 1 - places,\n"
                "    Order.SEQUENTIAL: _as_stored,\n",
            ),
        ]
    },
    """
    packtrain.run(config)
    from packtrain.training import PackedLoader
    from packtrain.training.trainer.train_config import LoaderConfig

    def rows(order):
        batches = PackedLoader("out", rows_per_step=1, epochs=1, order=order)
        return [batch["input_ids"][0].tolist() for batch in batches]

    assert rows("reversed") == rows("sequential")[::-1] and len(rows("reversed")) > 10
    assert LoaderConfig(order="reversed").order == "reversed"
    """,
)

COUNT = Recipe(
    "",
    {
        "schemas/dataset/ledger.py": [
            (
                "    call_arguments_not_json: int = 0\n",
                "    messages_rendered: int = 0\n    call_arguments_not_json: int = 0\n",
            )
        ],
        "pipeline/report/ledger_lines.py": [
            (
                '    ("dim", "tool calls whose',
                '    ("", "messages rendered", "messages_rendered"),\n    ("dim", "tool calls whose',
            )
        ],
        "pipeline/pack/ledger.py": [
            (
                "        entry.call_arguments_not_json += counts.total(NOT_JSON)\n",
                "        entry.call_arguments_not_json += counts.total(NOT_JSON)\n"
                '        entry.messages_rendered += counts.total("messages_rendered")\n',
            )
        ],
        "stages/tokenize/encode_counts.py": [
            ('NOT_JSON = "call', 'MESSAGES = "messages_rendered"\nNOT_JSON = "call'),
        ],
        "stages/tokenize/encode.py": [
            ("MOST_PLACES, NOT_JSON, EncodeCounts", "MESSAGES, MOST_PLACES, NOT_JSON, EncodeCounts"),
            (
                "        if unknown_roles:\n            counts.add_roles(",
                '        counts.add(MESSAGES, "", example.line, example.sub, count=len(messages))\n'
                "        if unknown_roles:\n            counts.add_roles(",
            ),
        ],
        "pipeline/encode/spec.py": [("\nFORMAT = ", "\nFORMAT = 1000 + ")],
        "schemas/dataset/manifest.py": [("\nFORMAT = ", "\nFORMAT = 1000 + ")],
    },
    """
    dataset = packtrain.run(config)
    rows = [json.loads(line) for line in open("chats.jsonl")]
    expected = sum(len(row["messages"]) for row in rows)
    assert dataset.ledger.sources["chats"].messages_rendered == expected > 0
    import subprocess, sys
    command = [sys.executable, "-m", "packtrain.pipeline.cli", "report", "out"]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert f"{dataset.ledger.total().messages_rendered:,}" in shown.stdout, shown
    """,
)
NOTE = Recipe(
    "",
    {
        "pipeline/run/advice.py": [
            (
                "        describe_mixture(config, ledger),\n",
                "        describe_mixture(config, ledger),\n        describe_few(ledger),\n",
            ),
            (
                "def describe_mixture(",
                "def describe_few(ledger: Ledger) -> str | None:\n"
                '    """Say that there are few rows; None if there are enough."""\n'
                "    rows = ledger.total().rows_read\n"
                '    return f"{rows} rows are few" if rows < 10_000 else None\n\n\n'
                "def describe_mixture(",
            ),
        ],
    },
    """
    dataset = packtrain.run(config)
    assert f"{dataset.ledger.total().rows_read} rows are few" in dataset.notes
    """,
)
OPTION = Recipe(
    "",
    {
        "schemas/config/source.py": [
            (
                '    style: Literal["plain", "chat"] | None = None\n',
                '    upper: bool = False\n    """Whether texts are written in capitals."""\n'
                '    style: Literal["plain", "chat"] | None = None\n',
            ),
            (
                "        is_own_reader = self.format.startswith(PYTHON)\n",
                '        if self.upper and not self._may_take("upper"):\n'
                '            raise ValueError("upper is for texts; leave it out")\n'
                "        is_own_reader = self.format.startswith(PYTHON)\n",
            ),
        ],
        "schemas/tables/row_formats.py": [
            ('OPTIONS = ("expand", ', 'OPTIONS = ("upper", "expand", '),
            (
                'RowFormat("text", "one text", ("text", "weight", "group"))',
                'RowFormat("text", "one text", ("text", "weight", "group"), ("upper",))',
            ),
        ],
        "stages/prep/base.py": [
            ("    per_turn: bool = False\n", "    upper: bool = False\n    per_turn: bool = False\n"),
            (
                "                examples += self.complete_examples(row, line, skipped)\n",
                "                if self.options.upper:\n"
                "                    row.text = row.text.upper()\n"
                "                examples += self.complete_examples(row, line, skipped)\n",
            ),
        ],
        "pipeline/inputs/source_formats.py": [
            ("        style=source.style,\n", "        style=source.style,\n        upper=source.upper,\n")
        ],
    },
    """
    texts = {"name": "texts", "path": "texts.jsonl", "format": "text"}
    config["sources"] = [texts]
    lengths = [packtrain.run(config | {"out": "as they are"}).ledger.total().tokens_encoded]
    config["sources"] = [texts | {"upper": True}]
    lengths.append(packtrain.run(config).ledger.total().tokens_encoded)
    assert lengths[0] != lengths[1], "capitals are other tokens, and not found in the cache of the others"
    config["sources"] = [{"name": "chats", "path": "chats.jsonl", "format": "messages", "upper": True}]
    try:
        packtrain.run(config)
        raise SystemExit("chats have no texts")
    except packtrain.PacktrainError as error:
        assert "upper is for texts" in str(error)
    """,
)
EXECUTOR = Recipe(
    "here",
    {
        "pipeline/execute/here.py": """
            from collections.abc import Callable, Generator, Iterable

            from .executor import Executor, Result, Task, never_done


            class HereExecutor(Executor):
                \"\"\"Runs tasks in this process, one after the other.\"\"\"

                def map(
                    self,
                    function: Callable[[Task], Result],
                    tasks: Iterable[Task],
                    is_done: Callable[[Task], bool] = never_done,
                ) -> Generator[Result, None, None]:
                    for task in tasks:
                        if not is_done(task):
                            yield function(task)

                def end_idle_workers(self) -> None:
                    pass

                def close(self) -> None:
                    pass
            """,
        "pipeline/run/workers.py": [
            (
                '    if section.executor == "ray":\n',
                '    if section.executor == "here":\n'
                "        from ..execute.here import HereExecutor\n\n"
                "        executor = HereExecutor()\n"
                '    elif section.executor == "ray":\n',
            )
        ],
        "schemas/config/config.py": [
            ('    executor: Literal["local", "ray"]', '    executor: Literal["local", "ray", "here"]'),
        ],
    },
    """
    expected = packtrain.run(config | {"out": "by a pool"})
    config |= {"cache": "another", "run": {"executor": "here"}}
    assert packtrain.run(config).hash == expected.hash
    """,
)

RECIPES = {
    "A mask policy": POLICY,
    "An output column": COLUMN,
    "A file format": FILE_KIND,
    "A row format": ROW_FORMAT,
    "A packing strategy": STRATEGY,
    "Another hash": HASH,
    "Per-token weights as input": TOKEN_WEIGHTS,
    "A writable store": STORE,
    "A tokenizer engine": ENGINE,
    "An order of rows": ORDER,
    "A count of the ledger": COUNT,
    "A note": NOTE,
    "An option of a source": OPTION,
    "An executor": EXECUTOR,
}
START = """
import json
from pathlib import Path

import packtrain

config = json.loads(Path("config.json").read_text())
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    return Scratch(tmp_path_factory.mktemp("site"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_the_files_that_it_changes(recipe: str, scratch: Scratch, tmp_path: Path) -> None:
    name, edits, program = RECIPES[recipe]
    always, sometimes = files_of(recipe, name)
    assert always <= set(edits) <= always | sometimes
    config = kit.configure(tmp_path, out="out", cache="cache")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with scratch.edited(edits):
        scratch.run(START + dedent(program), tmp_path)
