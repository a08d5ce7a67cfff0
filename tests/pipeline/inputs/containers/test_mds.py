"""MosaicML's MDS as a source: what its own writer wrote, and folders that cannot be used."""

import base64
import gzip
import hashlib
import json
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs import scan as sources
from packtrain.pipeline.inputs.containers import mds as container
from packtrain.pipeline.inputs.noted_files import files_note, read_files_note
from packtrain.pipeline.inputs.scan import InputFile, prepare_block, read_rows, sample_rows, scan_file, scan_source
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import SourceConfig
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.stages.prep import make_format
from packtrain.stages.prep.tokenized import TokenizedOptions

from tests.support.examples import examples
from tests.support.foreign_files import mds_ids as ids
from tests.support.foreign_files import mds_sample as sample
from tests.support.foreign_files import mds_shard as shard
from tests.support.foreign_files import megatron_pair
from tests.support.mosaic import need_streaming

THEIRS = (
    "eNrtUUFOwzAQdENKy4UbB26R4RikJpQQ9YJ4R1VVpnFbg2NXtlMoVV/CIzjwgUq8C5W140IPPIBDVtn17GYzs84GCKG3FkL9AKHzDkJrPJG8KsWY"
    "ioksmJhpPIiGWBREKbLCcYS1UWMmjIVTLolJMgt9xfcNKsiTbJDa2sPKUG2BLeae4rAZyteu81FLgUcA/AyClLTWJ8JpF2zGjOOaEz51HDYsCHOE"
    "ijw7+pJwboGhL24qI5+ocJ+ZSgE4kNDstZYQFedxVMc0jvI46u/TZA9+Y81QLhTVmsHQA/8OT6UqiYEcl4UfVM/9JfScpDeZU7eyY85KZluz26SX"
    "5xno4SVVni/dXMJqzsBhM+gY/BT8Avy+GwSwMWeBP4/8Gfoz6f1hKP/a1dZGux08gny+L2l4BHtHXfAT8OEaK8mpvUGlqfutEykMFcZfcjPqHAhb"
    "+wjrHIcw1vbuKkFbV2/50I736OezBje4wQ3+r3i9+QZYbp9u"
)  # fmt: skip
"""A shard of two samples that `MDSWriter` of mosaicml-streaming 0.13.0 wrote; zlib and Base64."""
ROWS: list[dict[str, Any]] = [
    {
        "any": [[1, 2], [3, 4]],
        "digits": 10**20,
        "half": 0.5,
        "n": -3,
        "pair": [5, 65_535],
        "raw": b"\0\xff",
        "small": 255,
        "text": "naïve",
        "tokens": [7, 8, 9],
        "turns": [{"role": "user", "content": None}],
    },
    {
        "any": [1.5],
        "digits": -1,
        "half": -2.0,
        "n": 2**40,
        "pair": [0, 1],
        "raw": b"",
        "small": 0,
        "text": "",
        "tokens": [0, 1, 2] * 100,
        "turns": {},
    },
]


def theirs() -> bytes:
    return zlib.decompress(base64.b64decode(THEIRS))


TOKENS = {"input_ids": "ndarray:int32"}


def index(folder: Path, files: dict[str, bytes], *, samples: int = 2, **changes: Any) -> Path:
    """Write shards and their index into a folder."""
    shards = []
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        hashes = {"sha256": hashlib.sha256(data).hexdigest(), "xxh64": "", "md5": hashlib.md5(data).hexdigest()}
        import xxhash

        hashes["xxh64"] = xxhash.xxh64(data).hexdigest()
        about = {"basename": name, "bytes": len(data), "hashes": hashes}
        raw, packed = about, None
        if not name.endswith(".mds"):
            raw, packed = {"basename": name.rpartition(".")[0], "bytes": 1, "hashes": {}}, about
        shards.append(
            {"version": 2, "format": "mds", "samples": samples, "raw_data": raw, "zip_data": packed} | changes
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


def scan(path: Path, max_row_bytes: int = 1 << 20) -> InputFile:
    return scan_file("one", "in", path, max_row_bytes, path.parent / "cache")


def rows_of(file: InputFile, max_row_bytes: int = 1 << 20, **options: Any) -> list[dict[str, Any]]:
    found = [read_rows(file.where(block), block, max_row_bytes, **options) for block in file.blocks]
    return [dict(row) for rows in found for _, row in rows.records or ()]


@pytest.fixture
def find(tmp_path: Path) -> Callable[..., list[InputFile]]:
    """The scanned files of a source."""

    def ask(path: Path | str, **more: Any) -> list[InputFile]:
        source = {"name": "s", "format": "tokenized", "path": str(path)} | more
        return scan_source(SourceConfig.model_validate(source), tmp_path, tmp_path / "cache")

    return ask


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".zstd", zstd), (".gz", gzip.compress)])
def test_what_their_writer_wrote(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"shard.00000.mds{suffix}"
    path.write_bytes(pack(theirs()))
    file = scan(path)
    assert rows_of(file) == ROWS
    assert rows_of(file, columns=("tokens", "n")) == [{"n": row["n"], "tokens": row["tokens"]} for row in ROWS]
    assert sample_rows(file, 1) == ROWS[:1]
    store = LocalStore(tmp_path / "cache")
    assert read_files_note(files_note([file], store), store) == [file]


def test_blocks_are_the_same_compressed_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a shard with more samples has the same blocks, but for the last one."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 100)
    monkeypatch.setattr(container, "_SAMPLES", 3)
    samples = [sample(ids(*range(number % 7 + 1))) for number in range(40)]
    (tmp_path / "plain.mds").write_bytes(shard(samples, TOKENS))
    (tmp_path / "packed.mds.zstd").write_bytes(zstd(shard(samples, TOKENS)))
    (tmp_path / "fewer.mds").write_bytes(shard(samples[:25], TOKENS))
    plain, packed, fewer = (scan(tmp_path / name) for name in ("plain.mds", "packed.mds.zstd", "fewer.mds"))
    assert len(plain.blocks) == 10
    assert [block.hash for block in plain.blocks] == [block.hash for block in packed.blocks]
    assert fewer.blocks[:-1] == plain.blocks[: len(fewer.blocks) - 1]
    assert rows_of(plain) == rows_of(packed) == [{"input_ids": list(range(number % 7 + 1))} for number in range(40)]
    assert container.some_samples(tmp_path / "plain.mds", 38, 9) == rows_of(plain)[38:]
    long = scan(tmp_path / "plain.mds", 30)
    assert sum(block.too_long for block in long.blocks) == 5  # of 7 tokens: 34 bytes
    assert len(rows_of(long, 30)) == 35


@st.composite
def datasets(draw: st.DrawFn) -> tuple[str | None, str, list[list[int]]]:
    """(compression, type, ids of each sample)"""
    kind = draw(st.sampled_from(["uint16", "int32", "int64", "uint8"]))
    rows = draw(
        st.lists(st.lists(st.integers(0, min(np.iinfo(kind).max, 2**31 - 1)), min_size=1), min_size=1, max_size=20)
    )
    return draw(st.sampled_from([None, "zstd", "zstd:7", "gz"])), kind, rows


@pytest.mark.slow
@given(datasets())
@examples(40)
def test_any_tokens_that_their_writer_wrote(data: tuple[str | None, str, list[list[int]]]) -> None:
    need_streaming()
    from streaming.base.format.mds.writer import MDSWriter

    compression, kind, rows = data
    with tempfile.TemporaryDirectory() as name:
        columns = {"tokens": f"ndarray:{kind}", "raw": "bytes", "mask": "ndarray"}
        out = Path(name) / "out"
        hashes = ["blake2b", "sha1", "xxh3_64"]
        with MDSWriter(out=str(out), columns=columns, compression=compression, hashes=hashes, size_limit=600) as writer:
            for row in rows:
                tokens = np.array(row, kind)
                raw = tokens.astype(np.int64).tobytes()
                writer.write({"tokens": tokens, "raw": raw, "mask": (tokens % 2).astype(np.uint8)})
        source = SourceConfig.model_validate({"name": "s", "format": "tokenized", "path": str(out)})
        files = scan_source(source, Path(name), Path(name) / "cache")
        found = [row for file in files for row in rows_of(file)]
        assert [row["tokens"] for row in found] == rows
        assert [row["mask"] for row in found] == [[token % 2 for token in row] for row in rows]
        for key in ("tokens", "raw"):
            form = make_format("tokenized", TokenizedOptions(ids_key=key, mask_key="mask"))
            made = [
                example
                for file in files
                for block in file.blocks
                for example in prepare_block(file.where(block), block, form, 1 << 20).examples
            ]
            assert [np.asarray(one.ids).tolist() for one in made] == rows
            flags = [[token % 2 == 1 for token in row] for row in rows]
            assert [np.asarray(one.trained).tolist() if one.trained is not None else None for one in made] == [
                None if all(each) else each for each in flags
            ]


ENCODINGS = {
    "pkl": "has the column 'x' with the encoding pkl: reading a pickle runs whatever code it holds, so it is not read",
    "jpeg": "with the encoding jpeg, a picture, and only text and numbers are read",
    "list[png]": "a picture",
    "ndarray:object": "with the encoding ndarray:object, which is not known",
    "ndarray:int32:0": "which is not known",
    "ndarray:int32:-1": "which is not known",
    "ndarray:int32:2:2": "which is not known",
    "int128": "which is not known",
    "os.system": "which is not known",
    "": "which is not known",
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_columns_that_are_not_read(tmp_path: Path, encoding: str) -> None:
    """Whether or not a format needs them: none is skipped silently, and no pickle is opened."""
    path = tmp_path / "a.mds"
    path.write_bytes(shard([sample(ids(1), b"\x80\x04.")], TOKENS | {"x": encoding}))
    with pytest.raises(InputError) as caught:
        scan(path)
    assert ENCODINGS[encoding] in str(caught.value)


GOOD = [sample(ids(1, 2)), sample(ids(3))]
DAMAGED = {
    "of no bytes": (b"\1\0", "is cut short: it has 2 bytes"),
    "too many samples": (b"\xff\xff\xff\xff" + shard(GOOD, TOKENS)[4:], "is cut short: 4,294,967,295 samples need"),
    "cut short": (shard(GOOD, TOKENS)[:-1], "is cut short: its samples end at byte"),
    "too long": (shard(GOOD, TOKENS) + b"x", "is too long: its samples end at byte"),
    "samples in the head": (struct.pack("<3I", 1, 3, 12), "puts its first sample at byte 3"),
    "samples that overlap": (
        struct.pack("<4I", 2, 16 + 180, 16 + 100, 16 + 190) + shard([], TOKENS)[8:].ljust(180) + bytes(10),
        "has samples that overlap, or lie outside of it",
    ),
    "another version": (shard(GOOD, TOKENS, version=3), "is of version 3, and only version 2 is known"),
    "another format": (shard(GOOD, TOKENS, format="xsv"), "has shards of format xsv, and only mds is read"),
    "no JSON": (shard(GOOD, TOKENS).replace(b'"version"', b'"version '), "has a head that is not JSON of an MDS shard"),
    "columns twice": (shard(GOOD, TOKENS, column_names=["a", "a"]), "has a head whose columns, encodings and sizes do"),
    "a negative size": (shard(GOOD, TOKENS, column_sizes=[-4]), "has a head with a column of negative size"),
    "deep JSON": (shard(GOOD, TOKENS, more=json.loads("[" * 200 + "]" * 200)), "nested too deeply"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_shard(tmp_path: Path, what: str) -> None:
    data, reason = DAMAGED[what]
    for path, bytes in ((tmp_path / "a.mds", data), (tmp_path / "a.mds.zstd", zstd(data))):
        path.write_bytes(bytes)
        with pytest.raises(InputError) as caught:
            scan(path)
        assert str(caught.value).startswith(f"{path} ")
        assert reason in str(caught.value)


REJECTED = {
    "sizes": (struct.pack("<I", 3) + ids(1), "ndarray:int32", "unreadable_value", "its values take 7 bytes, and the"),
    "no sizes": (b"\0", "ndarray:int32", "unreadable_value", "the sample has 1 bytes, too few for its sizes"),
    "a shape": (sample(ids(1, 2)[:-4]), "ndarray:int32", "unreadable_value", "`x` is no ndarray:int32 (cannot reshape"),
    "a large shape": (sample(b"\x0f" + b"\xff" * 24), "ndarray:int32", "unreadable_value", "`x` is no ndarray:int32"),
    "a shape of lists": (
        sample(b"\x0b" + struct.pack("<2Q", 1 << 33, 0)[:16]),
        "ndarray:int32",
        "unreadable_value",
        "its shape makes 8,589,934,592 lists of 0 numbers",
    ),
    "lists in lists": (
        sample(bytes([60 << 2]) + b"\xff" + b"\1" * 59 + bytes(4 * 255)),
        "ndarray:int32",
        "unreadable_value",
        "its shape makes 15,045 lists of 255 numbers",
    ),
    "no shape": (sample(b""), "ndarray:int32", "unreadable_value", "it has no shape"),
    "a short shape": (sample(b"\x0b\1"), "ndarray", "unreadable_value", "its type is not known"),
    "half a number": (sample(b"\4\1\0\0\0"), "ndarray:int32", "unreadable_value", "multiple of element size"),
    "a scalar": (sample(b"1234567"), "int", "unreadable_value", "`x` is no int (buffer size must be"),
    "no text": (sample(b"\xff"), "str", "invalid_utf8", "`x` is not UTF-8"),
    "no JSON": (sample(b"{"), "json", "invalid_json", "`x` is not JSON"),
    "deep JSON": (sample(b"[" * 200 + b"]" * 200), "json", "too_deep", "nests more than"),
    "digits": (sample(b"1" * 5000), "str_int", "unreadable_value", "it has 5,000 digits"),
}


@pytest.mark.parametrize("what", REJECTED)
def test_a_sample_that_cannot_be_read_costs_itself(tmp_path: Path, what: str) -> None:
    bad, encoding, reason, said = REJECTED[what]
    path = tmp_path / "a.mds"
    path.write_bytes(shard([bad, bad], {"x": encoding}))
    ((block,),) = (scan(path).blocks,)
    found = read_rows(path, block, 1 << 20)
    assert [(number, why) for number, why, _ in found.rejects] == [(0, reason), (1, reason)]
    assert said in found.rejects[0][2]


def test_empty_samples_are_not_all_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 120)
    (tmp_path / "a.mds").write_bytes(shard([b""] * 100, TOKENS))
    blocks = scan(tmp_path / "a.mds").blocks
    assert sum(block.lines for block in blocks) == 100
    assert max(block.lines for block in blocks) == 30


def test_flipped_bits_end_in_an_error_or_in_rows(tmp_path: Path) -> None:
    path, chance, refused = tmp_path / "a.mds", random.Random(4), list[str]()
    for _ in range(300):
        broken = bytearray(theirs())
        broken[chance.randrange(700)] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        try:
            rows_of(scan(path))
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(str(path) in said for said in refused)


def test_a_folder_and_its_splits(tmp_path: Path, find: Callable[..., list[InputFile]]) -> None:
    one, two = shard(GOOD, TOKENS), shard(GOOD[::-1], TOKENS)
    train = index(tmp_path / "all" / "train", {"shard.00000.mds": one, "1/shard.00000.mds": two})
    assert [row["input_ids"] for file in find(train) for row in rows_of(file)] == [[1, 2], [3], [3], [1, 2]]
    assert [file.label for file in find(train)] == ["train/shard.00000", "1/shard.00000"]
    assert len(find(tmp_path / "all")) == 2
    (tmp_path / "all" / "export.json").write_text("{}")
    index(tmp_path / "all" / "val", {"shard.00000.mds.zstd": zstd(one)})
    assert len(find(tmp_path / "all", split="train")) == 2
    assert [row["input_ids"] for row in rows_of(find(tmp_path / "all", split="val")[0])] == [[1, 2], [3]]
    for split, reason in ((None, "has the splits train, val; say which one"), ("tain", "did you mean train?")):
        with pytest.raises(ConfigError) as caught:
            find(tmp_path / "all", split=split)
        assert reason in str(caught.value)
    with pytest.raises(ConfigError):
        find(train, split="train")
    (train / "1" / "shard.00000.mds").unlink()
    (train / "shard.00000.mds").write_bytes(zstd(one))
    with pytest.raises(InputError):
        find(train)


def test_data_beside_an_index_of_something_else(tmp_path: Path, find: Callable[..., list[InputFile]]) -> None:
    (tmp_path / "index.json").write_text('{"input_ids": [1], "shards": ["x"]}\n')
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [1]}\n')
    index(tmp_path / "more", {"shard.00000.mds": shard(GOOD, TOKENS)})
    found = [file.path.relative_to(tmp_path).as_posix() for file in find(tmp_path)]
    assert found == ["index.json", "more/index.json", "rows.jsonl"]


BAD_INDEX: dict[str, tuple[dict[str, Any], str]] = {
    "leaves": (
        {"raw_data": {"basename": "../a.mds", "bytes": 1}},
        "names '../a.mds', which lies outside of its folder",
    ),
    "absolute": (
        {"raw_data": {"basename": "/etc/passwd", "bytes": 1}},
        "names '/etc/passwd', which lies outside of its",
    ),
    "windows": ({"raw_data": {"basename": "..\\a.mds", "bytes": 1}}, "which lies outside of its folder"),
    "no name": ({"raw_data": {"basename": "", "bytes": 1}}, "which lies outside of its folder"),
    "leaves, compressed": ({"zip_data": {"basename": "b/../../a.mds.zstd", "bytes": 1}}, "which lies outside of its"),
    "missing": ({"raw_data": {"basename": "b.mds", "bytes": 1}}, "names b.mds, which is missing; copy it again"),
    "another version": ({"version": 1}, "is of version 1, and only version 2 is known"),
    "another format": ({"format": "json"}, "has shards of format json, and only mds is read"),
    "samples": ({"samples": 3}, "has 2 samples, and index.json says 3; copy the dataset again"),
    "fewer than none": ({"samples": -1}, "gives a.mds -1 samples"),
    "none": ({"samples": 0}, "lists no samples; leave"),
    "text for a number": ({"samples": "2"}, "is not the index of MDS shards"),
    "no file": ({"raw_data": None}, "is not the index of MDS shards"),
}


@pytest.mark.parametrize("what", BAD_INDEX)
def test_an_index_that_cannot_be_used(tmp_path: Path, find: Callable[..., list[InputFile]], what: str) -> None:
    changes, reason = BAD_INDEX[what]
    (tmp_path / "a.mds").write_bytes(shard(GOOD, TOKENS))
    folder = index(tmp_path / "data", {"a.mds": shard(GOOD, TOKENS)}, **changes)
    with pytest.raises(InputError) as caught:
        find(folder)
    assert reason in str(caught.value)
    assert str(folder) in str(caught.value)
    assert str(caught.value).count("; ") == 1


def test_hashes_are_checked(tmp_path: Path, find: Callable[..., list[InputFile]]) -> None:
    data = shard(GOOD, TOKENS)
    for name, bytes in (("a.mds", data), ("a.mds.zstd", zstd(data))):
        for algorithm in ("sha256", "xxh64", "md5"):
            folder = index(tmp_path / f"{name}-{algorithm}", {name: bytes})
            listed = json.loads((folder / "index.json").read_text())
            about = listed["shards"][0]["zip_data"] or listed["shards"][0]["raw_data"]
            about["hashes"] |= {"unknown": "00"}
            (folder / "index.json").write_text(json.dumps(listed))
            assert len(find(folder)) == 1
            about["hashes"][algorithm] = "0" * len(about["hashes"][algorithm])
            (folder / "index.json").write_text(json.dumps(listed))
            with pytest.raises(InputError):
                find(folder)


def test_a_compression_that_is_not_read(tmp_path: Path, find: Callable[..., list[InputFile]]) -> None:
    folder = index(tmp_path / "data", {"a.mds.snappy": b"x" * 40})
    with pytest.raises(InputError):
        find(folder)


def test_shards_of_a_store_are_named_by_a_pattern(tmp_path: Path, find: Callable[..., list[InputFile]]) -> None:
    folder = index(tmp_path / "data", {f"shard.{number:05d}.mds": shard(GOOD, TOKENS) for number in range(2)})
    found = find(f"file://{folder}/*.mds")
    assert [row["input_ids"] for file in found for row in rows_of(file)] == [[1, 2], [3]] * 2
    with pytest.raises(ConfigError):
        find(f"file://{folder}")
    pair = megatron_pair(tmp_path / "pairs")
    with pytest.raises(InputError):
        find(f"file://{pair}")
