"""Every mistake of refusals.yaml: its exit code, what is named, and a fragment of the sentence; nothing is left behind
that looks finished.

A sentence that users read is asserted there or nowhere.
"""

import gzip
import importlib.util
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests import kit

TORCH = ("train", "sample", "probe", "loader", "explain-loss")
"""Commands that need torch."""


class Loader(yaml.SafeLoader):
    """YAML with `!bytes "\\xff"`: each character is a byte, and `!gzip`: the same, compressed."""


def _bytes(loader: Loader, node: yaml.ScalarNode) -> bytes:
    return str(loader.construct_scalar(node)).encode("latin-1")


def _gzip(loader: Loader, node: yaml.ScalarNode) -> bytes:
    return gzip.compress(_bytes(loader, node), mtime=0)


Loader.add_constructor("!bytes", _bytes)
Loader.add_constructor("!gzip", _gzip)


def read(name: str) -> list[Any]:
    return yaml.load((Path(__file__).parent / name).read_text(encoding="utf-8"), Loader)  # type: ignore[no-any-return]


def cases() -> Iterator[Any]:
    """Each case, with the defaults of its group."""
    for group in read("refusals.yaml"):
        common = {key: value for key, value in group.items() if key not in ("group", "cases")}
        for number, case in enumerate(group["cases"], 1):
            yield pytest.param(kit.merged(common, case), id=f"{group['group']}-{number}")


# What cases name in `have`


def dataset(folder: Path, *kinds: str, **keys: Any) -> None:
    """A finished dataset in `folder`."""
    kit.packed(kit.configure(folder.parent, *kinds, out=str(folder), **keys))


def model(folder: Path) -> None:
    """A model without weights."""
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def bare(folder: Path) -> None:
    """A tokenizer without a chat template."""
    kit.tokenizer(folder, template=None)


MADE: dict[str, Callable[[Path], None]] = {
    "packed": lambda folder: dataset(folder, "texts", "chats"),
    "pairs": lambda folder: dataset(folder, "choices"),
    "unpacked": lambda folder: dataset(folder, "choices", pack={"strategy": "none"}),
    "model": model,
    "bare": bare,
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache and with what cases name, made when the first one does."""
    return tmp_path_factory.mktemp("refusals")


def put(path: Path, content: Any) -> None:
    """Write a file as the YAML gives it: text, bytes, rows, a link, a pipe, or nothing for a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match content:
        case None:
            path.mkdir(exist_ok=True)
        case str():
            path.write_text(content, encoding="utf-8")
        case bytes():
            path.write_bytes(content)
        case list():
            kit.write(path, content)
        case {"link": target}:
            path.symlink_to(target)
        case {"rows": rows, "cut": count}:
            kit.write(path, rows)
            os.truncate(path, path.stat().st_size - count)
        case {"twice": name}:
            table = pa.Table.from_arrays([pa.array(["a"])] * 2, [name] * 2)
            pq.write_table(table, path)
        case {"json": value}:
            path.write_text(json.dumps(value))
        case {"fifo": True}:
            os.mkfifo(path)
        case {"gone": True}:
            path.unlink()
        case {"flip": place}:
            data = bytearray(path.read_bytes())
            data[place] ^= 4
            path.write_bytes(data)
        case _:
            raise ValueError(content)


def everything(folder: Path) -> dict[str, bytes]:
    """The files below a folder, without what a run notes while it works."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if "_run" not in path.parts}


@pytest.mark.parametrize("case", list(cases()))
def test_a_mistake_is_refused(case: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    words = case["run"].replace("{tokenizer}", str(kit.demo_tokenizer())).replace("{here}", str(tmp_path))
    if words.split()[0] in TORCH and not importlib.util.find_spec("transformers"):
        pytest.skip("training is not installed")
    for name in case.get("have", []):
        if not (shared / name).exists():
            MADE[name](shared / name)
        shutil.copytree(shared / name, tmp_path / name)
    kit.write(tmp_path / "rows.jsonl", [{"text": "hello world"}] * 3)
    source = {"name": "rows", "format": "text", "path": "rows.jsonl", **case.get("source", {})}
    chosen = {key: value for key, value in source.items() if value is not None}
    base = kit.configure(tmp_path, chosen, out="out", cache=str(shared / "cache"))
    del base["truncate"], base["output"]  # which cases have as they need them
    (tmp_path / "mix.yaml").write_text(json.dumps(kit.merged(base, case.get("config", {})), indent=1))
    for name, content in case.get("files", {}).items():
        put(tmp_path / name, content)

    before = everything(tmp_path)
    done = kit.cli(*shlex.split(words), cwd=tmp_path)
    said = " ".join(done.err.split())
    assert done.code == case.get("code", 2), done
    assert said.startswith(("packtrain: ", "Usage: packtrain ")), done
    assert "Traceback" not in done.err + done.out
    assert "\x1b" not in done.err
    for part in (*([case["key"]] if "key" in case else []), *([case["says"]] if "says" in case else [])):
        assert part in said
    after = everything(tmp_path)
    assert {name: after.get(name) for name in before} == before
    assert {Path(name).name for name in after.keys() - before} <= {"rejects.jsonl", ".training.lock"}, (
        "nothing looks finished"
    )


@pytest.mark.parametrize("case", [pytest.param(one, id=one["format"]) for one in read("bad_rows.yaml")])
def test_bad_rows_are_left_out_with_their_line_and_reason(case: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """Between rows that are used: of each format, all in one file and one run."""
    good = json.dumps(case["good"]).encode()
    bad = [one if isinstance(one, bytes) else json.dumps(one).encode() for one, *_ in case["bad"]]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(good + b"\n" + one + b"\n" for one in bad))
    source = {"name": "rows", "path": "rows.jsonl", "format": case["format"], **case.get("source", {})}
    config = kit.configure(tmp_path, source, cache=str(shared / "cache"))
    for name, text in case.get("files", {}).items():
        (tmp_path / name).write_text(text)
    packed = kit.packed(config)
    found = [(row["line"], row["reason"]) for row in packed.rejects()]
    assert found == [(2 * number, reason) for number, (_, reason, *_) in enumerate(case["bad"], 1)]
    for row, (_, _, *says) in zip(packed.rejects(), case["bad"], strict=True):
        assert row["file"] == "rows.jsonl"
        assert says == [] or says[0] in row["detail"], row
        assert len(row["detail"]) < 500
    assert packed.ledger["rows"]["rows_used"] == len(bad)
