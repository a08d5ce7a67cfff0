"""Exports to MDS and OLMo-core, read by the packages that they are made for.

These pin old libraries, so they are installed without their dependencies into a folder of their own, with the few that
their readers import, and read in a process that has this folder before its other packages.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.export.export import write_export
from tokenizers import Tokenizer

from .foreign_readers import olmo_bounds, olmo_rules

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("exports")]
PACKAGES = {
    "streaming": ["mosaicml-streaming==0.13.0", "zstd", "python-snappy", "cramjam", "brotli", "catalogue"],
    "olmo_core": ["ai2-olmo-core==3.0.0", "dataclass-extensions", "bettermap", "importlib-resources"],
}
STREAMING = """
import importlib.util, json, sys, types

# The package itself imports torchvision for readers of pictures; the reader of rows does not.
package = types.ModuleType("streaming")
package.__path__ = list(importlib.util.find_spec("streaming").submodule_search_locations)
sys.modules["streaming"] = package
from streaming.base.dataset import StreamingDataset

rows = StreamingDataset(local=sys.argv[1], split=sys.argv[2], shuffle=False, batch_size=1)
print(json.dumps([{name: value.tolist() for name, value in row.items()} for row in rows]))
"""
OLMO = """
import json, sys, types
from pathlib import Path

# Its client for files far away needs those of two clouds; the reader of local files does not.
away = types.ModuleType("cached_path")
away.schemes = away
away.cached_path = lambda path, **options: Path(path)  # of a local file
away.S3Client = away.SchemeClient = type("Client", (), {"recoverable_errors": ()})
away.add_scheme_client = print
sys.modules["cached_path"] = sys.modules["cached_path.schemes"] = away
import numpy as np
from olmo_core.data import NumpyFSLDataset

folder, split, eos, length = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
paths, masks = (sorted((folder / name).glob("*.npy")) for name in (split, f"{split}-mask"))
rows = NumpyFSLDataset(
    *paths, sequence_length=length, label_mask_paths=masks, pad_token_id=0, eos_token_id=eos, vocab_size=1 << 20,
    dtype=np.uint32, generate_doc_lengths=True,
)
found = (rows[number] for number in range(len(rows)))
print(json.dumps([[row[name].tolist() for name in ("input_ids", "label_mask", "doc_lens")] for row in found]))
"""
OLMO_BOUNDS = (
    OLMO[: OLMO.index("rows = Numpy")].replace("import NumpyFSLDataset", "import NumpyPackedFSLDataset")
    + """
rows = NumpyPackedFSLDataset(
    *paths, sequence_length=length, label_mask_paths=masks, pad_token_id=0, eos_token_id=eos, vocab_size=1 << 20,
    dtype=np.uint32, generate_doc_lengths=True, use_array_if_local=False,
)
rows.work_dir = folder / "work"
rows.prepare()
found = (rows[number] for number in range(len(rows)))
print(json.dumps([[row[name].tolist() for name in ("input_ids", "label_mask", "doc_lens")] for row in found]))
"""
)


@pytest.fixture(scope="module", params=PACKAGES)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A package that reads exports, and the folder that it is in."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    done = subprocess.run(
        [*command, *PACKAGES[request.param]], capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        pytest.skip(f"{request.param} cannot be installed: {done.stderr.strip()[-300:]}")
    return request.param, folder


def read(script: str, packages: Path, *arguments: object) -> Any:
    """What a script prints as its last line, as JSON."""
    environment = os.environ | {"PYTHONPATH": f"{packages}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def test_the_rows_come_back(
    installed: tuple[str, Path],
    made: Callable[[str], Path],
    read_rows: Callable[..., list[dict[str, Any]]],
    tiny_tokenizer: Path,
    tmp_path: Path,
) -> None:
    name, packages = installed
    dataset = made("bfd")
    if name == "streaming":
        write_export(dataset, tmp_path / "out", "mds")
        assert read(STREAMING, packages, tmp_path / "out", "train") == read_rows(dataset)
        return
    eos = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json")).token_to_id("<|im_end|>")
    assert eos is not None
    length = open_dataset(dataset).manifest.max_length
    write_export(dataset, tmp_path / "out", "olmo-core", eos_id=eos)
    found = read(OLMO, packages, tmp_path / "out", "train", eos, length)
    assert found == [list(row) for row in olmo_rules(tmp_path / "out", "train", eos, length)]
    assert len(found) == len(read_rows(dataset))
    write_export(dataset, tmp_path / "bounds", "olmo-core")
    documents = []
    for ids, mask, lengths in read(OLMO_BOUNDS, packages, tmp_path / "bounds", "train", eos, length):
        begins = np.cumsum([0, *lengths])
        pieces = [(ids[b : b + n], mask[b : b + n]) for b, n in zip(begins, lengths, strict=False)]
        documents += [piece for piece in pieces if any(piece[1])]  # what fills the row has no labels
    assert sorted(documents) == sorted(one for one in olmo_bounds(tmp_path / "bounds", "train") if any(one[1]))
