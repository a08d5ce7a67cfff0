"""Sources together, through whole runs: one output for all containers; rows taken, repeats and weights, all counted."""

import csv
import gzip
import io
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import packtrain
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.inputs import scan as sources_module
from packtrain.pipeline.inputs.scan_cache import scan_inputs
from packtrain.pipeline.run import prepare as prepare_module
from packtrain.schemas.errors import InputError, OutputError
from packtrain.schemas.ledger import SourceLedger
from packtrain.schemas.manifest import Manifest
from packtrain.schemas.rows import IGNORE_INDEX

Config = dict[str, Any]
Row = dict[str, Any]
Containers = Callable[[int], dict[str, Path]]
ReadRows = Callable[..., list[Row]]
WORDS = ("mules", "left", "the", "valley", "before", "sun", "was", "up", "nobody", "told", "them", "how", "far")


class Heard:
    """An observer that remembers what was worked on."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}

    def begin(self, stage: str, total: int, unit: str) -> None:
        self.totals[stage] = total

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        pass

    def end(self) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sources_module, "BLOCK_BYTES", 4000)
        yield


@pytest.fixture
def base(tmp_path: Path, make_tokenizer: Callable[..., Path], new_cache: Callable[[], Path]) -> Config:
    tokenizer = make_tokenizer("tiny")
    return {
        "out": str(tmp_path / "out"),
        "cache": str(new_cache()),
        "tokenizer": {"path": str(tokenizer), "engine": "tokenizers"},  # the fast ones are checked again on all data
        "truncate": {"max_length": 128},
        "run": {"workers": 1, "report": False},
    }


def run(config: Config, **changes: Any) -> tuple[Manifest, dict[str, int]]:
    heard = Heard()
    return packtrain.run({**config, **changes}, observer=heard), heard.totals


def words(number: int) -> str:
    chance = random.Random(number)
    return " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, 40)))


def pairs(count: int) -> list[Row]:
    return [{"prompt": f"{number}: {words(number)}\n", "completion": words(number + 1)} for number in range(count)]


def jsonl(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def separated(rows: list[Row]) -> bytes:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue().encode()


def write_all(folder: Path, rows: list[Row]) -> dict[str, Path]:
    """The same rows in every container, each in a folder of its own, as `in`."""
    import datasets

    for name in ("jsonl", "gz", "zst", "csv", "parquet", "arrow", "saved"):
        (folder / name).mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    paths = {
        "jsonl": folder / "jsonl/in.jsonl",
        "gz": folder / "gz/in.jsonl.gz",
        "zst": folder / "zst/in.jsonl.zst",
        "csv": folder / "csv/in.csv",
        "parquet": folder / "parquet/in.parquet",
        "arrow": folder / "arrow/in.arrow",
    }
    paths["jsonl"].write_bytes(jsonl(rows))
    paths["gz"].write_bytes(gzip.compress(jsonl(rows)))
    with pa.CompressedOutputStream(str(paths["zst"]), "zstd") as stream:
        stream.write(jsonl(rows))
    paths["csv"].write_bytes(separated(rows))
    pq.write_table(table, paths["parquet"], row_group_size=20)
    with pa.ipc.new_file(str(paths["arrow"]), table.schema) as writer:
        writer.write_table(table, max_chunksize=90)
    datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(folder / "saved/in")
    return {**paths, "saved": folder / "saved/in"}


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Containers:
    """So many pairs in every container, written once; not to be changed."""
    written: dict[int, dict[str, Path]] = {}

    def write(count: int) -> dict[str, Path]:
        if count not in written:
            written[count] = write_all(tmp_path_factory.mktemp("containers"), pairs(count))
        return written[count]

    return write


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gz", "parquet", "arrow", "saved", "csv"])
def test_appended_rows_encode_only_their_blocks(
    name: str, base: Config, containers: Containers, tmp_path: Path
) -> None:
    before, after = containers(380)[name], containers(400)[name]
    one = {"name": "one", "format": "prompt_completion"}
    _, totals = run(base, sources=[{**one, "path": str(before)}])
    grown, more = run(base, out=str(tmp_path / "grown"), sources=[{**one, "path": str(after)}])
    assert 0 < more["encode"] < totals["encode"] / 4
    alone, _ = run(
        base, out=str(tmp_path / "alone"), cache=str(tmp_path / "new"), sources=[{**one, "path": str(after)}]
    )
    assert alone.hash == grown.hash


def test_a_column_that_changes_while_it_is_packed(
    base: Config, containers: Containers, tmp_path: Path, monkeypatch: Any
) -> None:
    path = Path(shutil.copy(containers(120)["parquet"], tmp_path))

    def scan_and_change(*arguments: Any, **options: Any) -> Any:
        files = scan_inputs(*arguments, **options)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return files

    monkeypatch.setattr(prepare_module, "scan_inputs", scan_and_change)
    with pytest.raises(InputError):
        run(base, sources=[{"name": "one", "format": "prompt_completion", "path": str(path)}])


# --- rows taken ---


@pytest.mark.parametrize("name", ["jsonl", "zst", "parquet", "csv"])
def test_the_first_rows_are_taken_and_the_others_counted(
    name: str, base: Config, containers: Containers, tmp_path: Path
) -> None:
    path = containers(300)[name]
    one = {"name": "one", "format": "prompt_completion", "path": str(path)}
    whole, totals = run(base, sources=[one])
    some, more = run(base, out=str(tmp_path / "some"), sources=[{**one, "max_rows": 133}])
    entry = some.ledger.sources["one"]
    assert (entry.rows_read, entry.rows_used, entry.rows_filtered) == (300, 133, {"not_taken": 167})
    table = pq.read_table(tmp_path / "some/documents.parquet")
    assert table.column("id").to_pylist() == [f"one/in:{number}" for number in range(1, 134)]
    assert more.get("encode", 0) < totals["encode"] / 5, "only the block in which the limit falls"
    beyond, _ = run(base, out=str(tmp_path / "beyond"), sources=[{**one, "max_rows": 1000}])
    assert [s.hash for s in beyond.splits["train"].shards] == [s.hash for s in whole.splits["train"].shards]
    assert verify(tmp_path / "some", deep=True).sound


# --- repeats and weights ---


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., Path]) -> Config:
    """Three sources of unlike sizes, with rows that cannot be used, and some that are too long; and their cache."""
    folder = tmp_path_factory.mktemp("three")
    sizes = {"large": 400, "middle": 150, "small": 30}
    listed = []
    for number, (name, count) in enumerate(sizes.items()):
        rows: list[Row] = [
            {"prompt": f"{name} {row['prompt']}", "completion": row["completion"]} for row in pairs(count + number)
        ]
        rows += [{"prompt": "no"}, {"prompt": "x", "completion": "long " * 200}]
        (folder / f"{name}.jsonl").write_bytes(jsonl(rows))
        listed.append({"name": name, "format": "prompt_completion", "path": str(folder / f"{name}.jsonl")})
    return {"sources": listed, "cache": str(folder / "cache")}


@pytest.fixture
def three(base: Config, corpus: Config) -> Config:
    """Runs of them share a cache, so that only the first tokenizes."""
    return base | corpus


@pytest.fixture(scope="module")
def unmixed(tmp_path_factory: pytest.TempPathFactory, read_rows: ReadRows) -> "Callable[[Config], Unmixed]":
    """The run of a configuration without a mix, made once."""
    made: dict[str, Unmixed] = {}

    def find(config: Config) -> Unmixed:
        key = json.dumps([config["sources"], config["holdout"]])
        if key not in made:
            out = tmp_path_factory.mktemp("unmixed") / "out"
            manifest, _ = run(config, out=str(out))
            made[key] = manifest, Counted(out, manifest, read_rows)
        return made[key]

    return find


def with_keys(config: Config, **keys: list[Any]) -> list[Config]:
    """The sources with further keys, one value a source; None leaves it out."""
    out = []
    for number, source in enumerate(config["sources"]):
        more = {key: values[number] for key, values in keys.items() if values[number] is not None}
        out.append({**source, **more})
    return out


class Counted:
    """What the rows of a dataset hold, counted piece by piece."""

    def __init__(self, out: Path, manifest: Manifest, read_rows: ReadRows) -> None:
        table = pq.read_table(out / "documents.parquet").to_pylist()
        self.source = {entry["doc_id"]: entry["source"] for entry in table}
        assert len(self.source) == len(table)
        self.copies: dict[str, Counter[int]] = {split: Counter() for split in manifest.splits}
        self.tokens: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.content: dict[int, tuple[int, ...]] = {}
        for split in manifest.splits:
            for row in read_rows(out, split):
                at = 0
                for doc_id, start, size in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
                    content = tuple(row["input_ids"][at : at + size])
                    assert start == 0
                    assert self.content.setdefault(doc_id, content) == content
                    self.copies[split][doc_id] += 1
                    source = self.source[doc_id]
                    self.tokens[source] += size
                    self.labels[source] += sum(label != IGNORE_INDEX for label in row["labels"][at : at + size])
                    at += size
        assert {doc_id for copies in self.copies.values() for doc_id in copies} == {*self.source}

    def tokens_of(self, source: str, split: str = "train") -> int:
        copies = self.copies[split].items()
        return sum(count * len(self.content[one]) for one, count in copies if self.source[one] == source)


Unmixed = tuple[Manifest, Counted]


def check(entry: SourceLedger, plain: SourceLedger, name: str, counted: Counted, once: Counted) -> None:
    """The account of a source in a mix, against the shards and against the run without a mix.

    Args:
        once: the documents of the run without a mix, each packed once.
    """
    everything = {one for copies in once.copies.values() for one in copies if once.source[one] == name}
    copied = [one for copies in counted.copies.values() for one in copies.items()]
    there = {one: count for one, count in copied if counted.source[one] == name}
    assert {*there} <= everything
    left_out = everything - {*there}
    further = sum(count - 1 for count in there.values())
    repeats = sum((count - 1) * len(counted.content[one]) for one, count in there.items())
    assert entry.examples_repeated == further
    assert entry.tokens_created.get("repeats", 0) == repeats
    assert entry.examples_dropped.get("not_sampled", 0) == len(left_out)
    assert sum(entry.examples_packed.values()) == len(there)
    assert entry.tokens_packed == counted.tokens[name]
    assert entry.labels_trained == counted.labels[name]
    # Of those that are left out the whole, whatever truncation would have left of them.
    kept = sum(len(once.content[one]) for one in left_out)
    assert entry.tokens_dropped.get("not_sampled", 0) >= kept
    for what in ("rows_read", "rows_rejected", "examples_made", "tokens_encoded", "asked_encoded"):
        assert getattr(entry, what) == getattr(plain, what)
    for what, left, right in entry.equations():
        assert left == right, what


MIXES: dict[str, dict[str, list[Any]]] = {
    "repeat": {"repeat": [None, 1, 4]},
    "weights": {"weight": [1, 1, 1]},
    "weights, uneven": {"weight": [0.7, 0.2, 0.1]},
    "weights, the small one at most twice": {"weight": [1, 1, 1], "repeat": [None, None, 2]},
    "weights, nothing twice": {"weight": [5, 3, 2], "repeat": [1, 1, 1]},
    "weights and few rows": {"weight": [1, 2, 1], "max_rows": [100, None, 10]},
}


@pytest.mark.parametrize(("mix", "holdout"), [*((mix, 0.25) for mix in MIXES), ("weights", 0.0)])
def test_a_mix_is_what_it_says(
    mix: str,
    holdout: float,
    three: Config,
    unmixed: Callable[[Config], Unmixed],
    tmp_path: Path,
    read_rows: ReadRows,
) -> None:
    keys = MIXES[mix]
    common = {"holdout": {"fraction": holdout}}
    rows_only = with_keys(three, **{key: values for key, values in keys.items() if key == "max_rows"})
    plain, once = unmixed({**three, "sources": rows_only, **common})
    mixed, totals = run(three, sources=with_keys(three, **keys), **common)
    assert "encode" not in totals, "a mix tokenizes nothing"
    counted = Counted(tmp_path / "out", mixed, read_rows)
    assert all(count == 1 for copies in once.copies.values() for count in copies.values())
    for name, entry in mixed.ledger.sources.items():
        check(entry, plain.ledger.sources[name], name, counted, once)
    assert verify(tmp_path / "out", deep=True).sound
    if holdout:
        assert counted.copies["holdout"] == once.copies["holdout"], "what is held out is there once"

    names = [source["name"] for source in three["sources"]]
    tokens = {name: counted.tokens_of(name) for name in names}
    stats = {name: once.tokens_of(name) for name in names}
    repeats = dict(zip(names, keys.get("repeat", [None] * 3), strict=True))
    if "weight" not in keys:
        assert tokens == {name: stats[name] * (repeats[name] or 1) for name in names}
        return
    weights = dict(zip(names, keys["weight"], strict=True))
    bounds = [stats[name] * repeat / weights[name] for name, repeat in repeats.items() if repeat]
    scale = min(bounds) if bounds else max(stats[name] / weights[name] for name in names)
    for name in names:
        longest = max(len(counted.content[one]) for one in counted.content if counted.source[one] == name)
        assert abs(tokens[name] - scale * weights[name]) <= longest / 2 + 1
        copies = [count for one, count in counted.copies["train"].items() if counted.source[one] == name]
        assert max(copies) - min(copies) <= 1
        assert max(copies) <= (repeats[name] or 10**9)


def test_windows_of_a_mix(three: Config, tmp_path: Path, read_rows: ReadRows) -> None:
    """Planned in several windows, the mix is the same."""
    mix = with_keys(three, weight=[1, 1, 1])
    one, _ = run(three, sources=mix)
    several, _ = run(three, out=str(tmp_path / "several"), sources=mix, pack={"window_tokens": 4000})
    assert len(several.splits["train"].windows) > 3
    assert several.ledger == one.ledger
    left, right = (Counted(tmp_path / name, made, read_rows) for name, made in (("out", one), ("several", several)))
    assert left.copies == right.copies


def test_the_seed_chooses(three: Config, tmp_path: Path, read_rows: ReadRows) -> None:
    mix = with_keys(three, weight=[1, 1, 1], repeat=[1, 1, 1])
    chosen = []
    for number, seed in enumerate((1, 2)):
        made, _ = run(three, out=str(tmp_path / f"{number}"), sources=mix, seed=seed)
        chosen.append({*Counted(tmp_path / f"{number}", made, read_rows).source})
    assert chosen[0] != chosen[1]
    assert chosen[0] & chosen[1]


def test_a_mix_is_another_run(three: Config) -> None:
    run(three)
    with pytest.raises(OutputError):
        run(three, sources=with_keys(three, repeat=[None, None, 3]))
