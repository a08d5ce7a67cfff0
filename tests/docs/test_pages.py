"""Every command and every snippet of the documentation, run; what cannot run here, looked at."""

import importlib.util
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.block_checks import check
from tests.docs.markdown_page import RUN, PageError, names, page
from tests.docs.page_runner import PageRun, source_of
from tests.docs.prepared import Prepared, bucket
from tests.support.hub_stand_in import HubStandIn

PAGES = names()


def runs(name: str) -> bool:
    """Whether a page has something to run. A malformed page has, so that it fails."""
    try:
        return any(block.reason is None and block.language in RUN for block in page(name).blocks)
    except PageError:
        return True


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_in_order(name: str) -> None:
    for block in page(name).blocks:
        check(block)
        if block.language == "text" and block.reason is None:
            source_of(page(name), block)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAGES if runs(name)])
def test_what_a_page_says_works(name: str, prepared: "Prepared", tmp_path: Path) -> None:
    """In a folder that it may start from."""
    one = page(name)
    if ("model" in one.starts or name == "README.md") and importlib.util.find_spec("torch") is None:
        pytest.skip(f"{name} needs a model; torch is missing")
    if "bucket" in one.starts:
        pytest.importorskip("obstore")
        pytest.importorskip("moto")
    folder, home = tmp_path / "work", tmp_path / "home"
    home.mkdir()
    # As after a first run with this tokenizer: transformers has been asked.
    shutil.copytree(Path(os.environ["PACKTRAIN_CACHE"]) / "tokenizers", home / ".cache" / "packtrain" / "tokenizers")
    prepared.fill(folder, one.starts)
    with ExitStack() as stack:
        environment = {}
        if "bucket" in one.starts:
            held = folder / "packed" if "packed" in one.starts else None
            environment = stack.enter_context(bucket(held))
        if "hub" in one.starts:
            environment |= stack.enter_context(HubStandIn()).environment
        running = stack.enter_context(PageRun(one, folder, home, environment))
        running.run()
    if running.left_out:
        pytest.skip("; ".join(running.left_out))
    assert running.said
