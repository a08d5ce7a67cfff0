"""Selecting and planning keep little in memory: the columns are mapped, and only the planner's arrays grow."""

import json
import subprocess
import sys

import pytest

DOCUMENTS = 3_000_000
BYTES_EACH, BYTES_BESIDE = 100, 120 << 20
"""What may be held of anonymous memory: bytes of each planned document, and beside them (slices, and the file's pages
that Python and numpy need)."""

PROGRAM = """
import json, sys, tempfile, threading, time
from pathlib import Path
import numpy as np
from packtrain.pipeline.inputs.blocks import FileLines
from packtrain.pipeline.pack.outcomes import decide_together
from packtrain.pipeline.pack.planned_rows import RowForm
from packtrain.pipeline.pack.table import Origins, Table, scratch_documents
from packtrain.pipeline.pack.window_plan import plan_window, windows
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.dataset.manifest import FileRecord
from packtrain.schemas.layout import Alignment
from packtrain.stages.mask.policy import Mask
from packtrain.schemas.config.config import RunConfig

count = int(sys.argv[1])
parts = 300
source = {"name": "s", "format": "text", "path": "unused"}
config = RunConfig.model_validate(
    {"out": "o", "tokenizer": {"path": "t"}, "sources": [source], "duplicates": "drop"}
)
peak = [0]

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)

with tempfile.TemporaryDirectory() as folder:
    documents = scratch_documents(count, Path(folder))
    random = np.random.default_rng(0)
    for first in range(0, count, 1 << 18):
        here = documents.at(slice(first, first + (1 << 18)))
        lengths = random.integers(10, 1500, len(here)).astype(np.int32)
        here.length[:] = here.high[:] = here.kept[:] = here.labels[:] = lengths
        here.first_digest[:] = random.integers(0, 2**63, len(here), dtype=np.uint64)
    sizes = np.diff(np.linspace(0, count, parts + 1).astype(np.int64)).tolist()
    files = [FileRecord(f"part-{i}", 0, "0" * 64) for i in range(parts)]
    origins = Origins(files, [0] * parts, [FileLines(("file",), (0,))] * parts, sizes, [1] * parts)
    table = Table(documents, (), origins, origins.bounds(1), origins.starts, [0] * parts, (Mask(),))
    before = anonymous()
    threading.Thread(target=watch, daemon=True).start()
    decide_together(table, config)
    selected = peak[0] - before
    out = LocalStore(Path(folder) / "out")
    form = RowForm(Alignment(), 0)
    for number, blocks in enumerate(windows(table, "train", config, form)):
        plan_window(table, "train", number, blocks, 0, config, form, out)
    print(json.dumps({"select": selected, "all": peak[0] - before}))
"""


@pytest.mark.slow
def test_anonymous_memory_is_the_planner_s() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(DOCUMENTS)], capture_output=True, text=True, check=True, timeout=600
    )
    held = json.loads(done.stdout)
    assert held["all"] < BYTES_EACH * DOCUMENTS + BYTES_BESIDE, held
    assert held["select"] < BYTES_BESIDE + 60 * DOCUMENTS, held
