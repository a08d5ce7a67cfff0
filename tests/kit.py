"""What the suites share: rows of every kind, files of every container, tokenizers, templates, runs and commands.

Everything goes through the public boundary: `packtrain.run`, the command line, and files as any reader sees them.
"""

import csv
import gzip
import hashlib
import io
import json
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import packtrain
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet as pq
from packtrain.pipeline.observer import Observer

Row = dict[str, Any]
Config = dict[str, Any]

WORDS = (
    *("the", "mules", "left", "before", "sun", "was", "up", "nobody", "told", "them", "how", "far", "it", "would"),
    *("def", "return", "for", "in", "range", "1", "22", "333", "über", "naïve", "中文", "🙂"),
)
PROSE = """The mules left the valley before the sun was up. Nobody had told them how far it would be. Behind the last
houses the road became a path, and the path became a line of stones that someone had laid out a long time ago.
def add(left, right):
    return left + right
for number in range(10):
    print(number, number * number)
It doesn't matter much: 1, 22, 333, 4444. Über naïve Façaden, 中文, 🙂 and so on.
"""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = (
    "{% if tools %}{{ '<|im_start|>tools\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LATE_SYSTEM = (
    "{% for message in messages %}{% if message.role != 'system' %}"
    "{% if loop.last and messages[0].role == 'system' %}{{ '[' + messages[0].content + ']' }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Writes the system message before the last message, and so renders a prompt differently alone."""
REFUSE = "{% for m in messages if 'FORBIDDEN' in m.content %}{{ raise_exception('a forbidden word') }}{% endfor %}"
"""Before a template, it refuses conversations with that word."""
SPECIAL = ("<pad>", "<s>", "<|im_start|>", "<|im_end|>")


# Rows


def talk(chance: random.Random, most: int = 60) -> str:
    """Between 3 and `most` words."""
    return " ".join(chance.choices(WORDS, k=chance.randrange(3, most)))


def _texts(number: int, long: int, chance: random.Random) -> Row:
    return {"text": talk(chance, long) if number % 11 else "the same text again"}


def _pairs(number: int, long: int, chance: random.Random) -> Row:
    return {"prompt": talk(chance) + "\n", "completion": talk(chance, long)}


def _ids(number: int, long: int, chance: random.Random) -> Row:
    ids = [chance.randrange(300) for _ in range(chance.randrange(4, long))]
    return {"input_ids": ids, "labels": [-100 if place % 3 == 0 else one for place, one in enumerate(ids)]}


def _choices(number: int, long: int, chance: random.Random) -> Row:
    return {"prompt": talk(chance), "chosen": talk(chance), "rejected": talk(chance)}


def _apps(number: int, long: int, chance: random.Random) -> Row:
    solutions = json.dumps([f"print({number}, {one})" for one in range(number % 4)])
    return {"id": number, "question": talk(chance, long), "solutions": solutions, "difficulty": "interview"}


def _chats(number: int, long: int, chance: random.Random) -> Row:
    messages: list[Row] = [{"role": "system", "content": talk(chance)}] if number % 3 == 0 else []
    for turn in range(1 + number % 4):
        messages.append({"role": "user", "content": talk(chance)})
        answer: Row = {"role": "assistant", "content": talk(chance, long)}
        if turn and number % 5 == 0:
            answer["train"] = False
        messages.append(answer)
    return {"messages": messages}


def _thoughts(number: int, long: int, chance: random.Random) -> Row:
    """Conversations with thoughts, calls, results and a list of tools."""
    messages: list[Row] = [{"role": "user", "content": talk(chance)}]
    row: Row = {"messages": messages}
    if number % 2:
        tool = {"name": "look", "description": talk(chance, 9), "parameters": {"type": "object", "properties": {}}}
        row["tools"] = [{"type": "function", "function": tool}]
        call = {"type": "function", "function": {"name": "look", "arguments": {"at": talk(chance, 6)}}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": talk(chance, 20)})
    answer: Row = {"role": "assistant", "content": talk(chance, long)}
    if number % 3:
        answer["reasoning_content"] = talk(chance, 30)
    messages.append(answer)
    return row


def _sharegpt(number: int, long: int, chance: random.Random) -> Row:
    turns = [{"from": "human", "value": talk(chance)}, {"from": "gpt", "value": talk(chance, long)}]
    return {"conversations": turns * (1 + number % 2)}


def _alpaca(number: int, long: int, chance: random.Random) -> Row:
    return {"instruction": talk(chance), "input": talk(chance) if number % 2 else "", "output": talk(chance, long)}


_KINDS: dict[str, tuple[str, Callable[[int, int, random.Random], Row]]] = {
    "texts": ("text", _texts),
    "pairs": ("prompt_completion", _pairs),
    "ids": ("tokenized", _ids),
    "choices": ("preference", _choices),
    "apps": ("apps", _apps),
    "chats": ("messages", _chats),
    "thoughts": ("messages", _thoughts),
    "sharegpt": ("sharegpt", _sharegpt),
    "alpaca": ("alpaca", _alpaca),
}
KINDS = tuple(_KINDS)
"""The kinds of rows that `corpus` makes."""


def corpus(kind: str, count: int = 90, seed: int | None = None) -> list[Row]:
    """`count` rows of a kind, always the same ones; every 17th is long."""
    chance = random.Random(KINDS.index(kind) if seed is None else seed)
    return [_KINDS[kind][1](number, 400 if number % 17 == 0 else 60, chance) for number in range(count)]


# Files


def lines(rows: Iterable[Row]) -> bytes:
    """Rows as JSONL."""
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def write(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows in the container that the name of the file says: .jsonl, .json, .csv, .parquet, .arrow, or .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(_content(Path(path.stem), rows), mtime=0))
    else:
        path.write_bytes(_content(path, rows))
    return path


def _content(name: Path, rows: Sequence[Row]) -> bytes:
    match name.suffix:
        case ".jsonl":
            return lines(rows)
        case ".json":
            return json.dumps(list(rows)).encode()
        case ".csv":
            text = io.StringIO()
            table = csv.DictWriter(text, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
            return text.getvalue().encode()
        case ".parquet":
            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(list(rows)), sink, row_group_size=32)
            return bytes(sink.getvalue())
        case ".arrow":
            sink = pa.BufferOutputStream()
            whole = pa.Table.from_pylist(list(rows))
            with pa.ipc.new_stream(sink, whole.schema) as stream:
                stream.write_table(whole, max_chunksize=32)
            return bytes(sink.getvalue())
    raise ValueError(f"no container is called {name.suffix}")


def tree(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a finished dataset, but not of what tells how it was made: `_run`, the report."""
    beside = ("_run", "report.html", "report.json", "README.md")
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    chosen = (name for name in names if name.parts[0] not in beside)
    return {str(name): hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in chosen}


# Tokenizers


def tokenizer(
    folder: Path, *, bos: bool = False, eos: bool = False, template: str | None = CHATML, special: Sequence[str] = ()
) -> Path:
    """Write a byte-level BPE of 400 tokens as a folder that transformers loads; an existing one is taken as it is.

    `<|im_end|>` ends sequences. `bos` and `eos` let the tokenizer put `<s>` and `<|im_end|>` around plain texts.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    if (folder / "tokenizer_config.json").exists():
        return folder
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400 + len(special),
        special_tokens=[*SPECIAL, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(PROSE.splitlines(keepends=True) * 4, trainer)
    if bos or eos:
        single = f"{'<s> ' if bos else ''}$A{' <|im_end|>' if eos else ''}"
        made.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<s>", 1), ("<|im_end|>", 3)]
        )
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config: Row = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def demo_tokenizer() -> Path:
    """The tokenizer that packtrain brings with it, with a ChatML template."""
    assert packtrain.__file__ is not None
    return Path(packtrain.__file__).parent / "pipeline" / "demo" / "tokenizer"


# Runs


def source(kind: str, **keys: Any) -> Config:
    """A source of rows of a kind, in `<kind>.jsonl` unless `path` says otherwise."""
    return {"name": kind, "format": _KINDS[kind][0], "path": f"{kind}.jsonl", **keys}


def configure(folder: Path, *sources: Config | str, **keys: Any) -> Config:
    """The configuration of a small run: rows of 256 tokens, shards of 64 KiB, one worker, no report.

    Args:
        folder: where inputs, `out` and `cache` lie.
        sources: kinds, or sources. The files of kinds are written if they are not there.
        keys: of the configuration; sections are merged into those above.
    """
    chosen = [source(one) if isinstance(one, str) else one for one in sources or ("chats", "texts", "pairs")]
    for one in chosen:
        path = folder / str(one.get("path"))
        if one.get("name") in _KINDS and not path.exists() and path.name == f"{one['name']}.jsonl":
            write(path, corpus(one["name"]))
    config: Config = {
        "sources": chosen,
        "out": str(folder / "out"),
        "cache": str(folder / "cache"),
        "tokenizer": {"path": str(demo_tokenizer())},
        "truncate": {"max_length": 256},
        "output": {"shard_bytes": 1 << 16},
        "run": {"workers": 1, "report": False},
    }
    return merged(config, keys)


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """A configuration with changes; mappings are merged, anything else is replaced."""
    result = dict(config)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def saved(config: Config, name: str = "config.json") -> Path:
    """Write a configuration as a file beside its `out`, for the command line: JSON is YAML."""
    file = Path(config["out"]).parent / name
    file.write_text(json.dumps(config, indent=1))
    return file


class Heard(Observer):
    """An observer that keeps what a run says."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []

    def begin(self, stage: str, total: int, unit: str) -> None:
        self.stages.append(stage)

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass(frozen=True)
class Packed:
    """A finished dataset, read as any reader would: with pyarrow and json."""

    folder: Path
    manifest: Any = None
    notes: list[str] = field(default_factory=list)

    @property
    def record(self) -> Row:
        """manifest.json."""
        return json.loads((self.folder / "manifest.json").read_bytes())  # type: ignore[no-any-return]

    @property
    def ledger(self) -> Row:
        """What the manifest says of every source, in tokens and rows."""
        return self.record["ledger"]  # type: ignore[no-any-return]

    @property
    def splits(self) -> list[str]:
        """The names of the splits."""
        return list(self.record["splits"])

    def table(self, split: str = "train") -> pa.Table:
        """The rows of a split, in their order."""
        shards = [self.folder / shard["name"] for shard in self.record["splits"][split]["shards"]]
        return pa.concat_tables([_read(shard) for shard in shards])

    def rows(self, split: str = "train") -> list[Row]:
        """The rows of a split as plain values."""
        rows: list[Row] = self.table(split).to_pylist()
        return rows

    def documents(self) -> list[Row]:
        """The packed examples in documents.parquet."""
        return [document for document in self.examples() if document["outcome"] == "packed"]

    def examples(self) -> list[Row]:
        """documents.parquet, which lists those that were left out, too."""
        rows: list[Row] = pq.read_table(self.folder / "documents.parquet").to_pylist()
        return rows

    def rejects(self) -> list[Row]:
        """The lines of rejects.jsonl; none without the file."""
        file = self.folder / "rejects.jsonl"
        return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []

    def digest(self) -> str:
        """A hash of the rows of every split: ids, labels, positions, weights and what else a row has, in order.

        It does not depend on how rows are cut into shards, on containers or on versions of libraries.
        """
        seen = hashlib.sha256()
        for split in sorted(self.splits):
            table = self.table(split)
            for name in sorted(table.column_names):
                seen.update(f"{split}.{name}\n".encode())
                column = table[name].combine_chunks()
                while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
                    seen.update(np.asarray(pa.compute.list_value_length(column), np.int64).tobytes())
                    column = column.flatten()
                if pa.types.is_floating(column.type):
                    seen.update(np.asarray(column, np.float64).tobytes())
                elif pa.types.is_integer(column.type):
                    seen.update(np.asarray(column, np.int64).tobytes())
                else:
                    seen.update(json.dumps(column.to_pylist()).encode())
        return seen.hexdigest()[:32]


def _read(shard: Path) -> pa.Table:
    with pa.memory_map(str(shard)) as file:
        return pa.ipc.open_stream(file).read_all()


def packed(config: Config, base: Path | None = None) -> Packed:
    """Run a configuration in this process."""
    heard = Heard()
    dataset = packtrain.run(config, base=base or Path(config["out"]).parent, observer=heard)
    return Packed(Path(config["out"]), dataset.manifest, heard.notes)


# Commands


@dataclass(frozen=True)
class Outcome:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


def cli(*words: object, cwd: Path | None = None, stdin: str = "") -> Outcome:
    """Run `packtrain WORDS` in this process, as the installed program would, in a folder `cwd`."""
    from packtrain.pipeline.cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = None
    with (
        chdir(cwd or Path.cwd()),
        _handlers_kept(),
        patch.object(sys, "argv", ["packtrain", *map(str, words)]),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as leave:
            code = leave.code
    assert isinstance(code, int), code
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Outcome(code, *said)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Commands treat SIGTERM as an interruption; the process of the tests goes on as before."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
