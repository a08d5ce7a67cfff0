"""Every command and every snippet of the documentation, run; what cannot run here, looked at."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.page import PageRun, blocks, mix, names, starts
from tests.docs.prepared import Prepared, bucket
from tests.support import warm
from tests.support.hub_stand_in import HubStandIn

PAGES = names()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """See `Prepared`."""
    return Prepared(tmp_path_factory.mktemp("prepared"), mix())


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_in_order(name: str) -> None:
    for block in blocks(name):
        block.check()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAGES if any(block.runs for block in blocks(name))])
def test_what_a_page_says_works(name: str, prepared: "Prepared", tmp_path: Path) -> None:
    """In a folder that it may start from."""
    has = starts(name)
    folder, home = tmp_path / "work", tmp_path / "home"
    prepared.fill(folder, has)
    shutil.copytree(prepared.user, home / ".cache" / "packtrain")  # as after a first run with this tokenizer
    with ExitStack() as stack:
        # What is forked from the server of torch has read the Hub's address long ago.
        trains = "hub" not in has and (warm.UNDER_XDIST or "model" in has)
        environment = warm.python(warm.TRAINING if trains else warm.PIPELINE)
        if "bucket" in has:
            environment |= stack.enter_context(bucket(folder / "packed" if "packed" in has else None))
        if "hub" in has:
            environment |= stack.enter_context(HubStandIn()).environment
        running = PageRun(folder, home, environment)
        for block in blocks(name):
            running.run(block)
    assert running.said
