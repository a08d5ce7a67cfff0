"""`packtrain wait`: it ends when the manifest exists, and fails if the run is dead."""

import signal
import threading
import time
from pathlib import Path

import packtrain
import pytest
from packtrain.pipeline.dataset import wait as wait_module
from packtrain.pipeline.dataset.wait import wait
from packtrain.pipeline.run.run import run
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.run_lock import hold_run_lock
from packtrain.schemas.errors import RunDiedError, TaskError

from tests import kit
from tests.support import warm


@pytest.fixture
def config(tmp_path: Path) -> kit.Config:
    return kit.configure(tmp_path, kit.source("texts", path=str(tmp_path / "texts.jsonl")))


def test_it_returns_as_soon_as_the_manifest_is_there(
    config: kit.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Timer(0.5, lambda: run(config))
    started.start()
    manifest = packtrain.wait(tmp_path / "out", 300)
    started.join()
    assert manifest.splits["train"].rows > 1
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waited for what is there"))
    assert wait(tmp_path / "out", 0).hash == manifest.hash


def test_a_run_that_begins_again_in_time_is_waited_for(config: kit.Config, tmp_path: Path) -> None:
    out = LocalStore(tmp_path / "out")
    with pytest.raises(TaskError), hold_run_lock(out):
        raise TaskError("at first")
    started = threading.Timer(0.5, lambda: run(config))
    started.start()
    assert wait(tmp_path / "out", 300).splits["train"].rows > 1
    started.join()


def test_a_run_that_is_killed_is_missed(config: kit.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import time\nfrom pathlib import Path\nfrom packtrain.pipeline.store.run_lock import hold_run_lock\n"
        "from packtrain.pipeline.store.local import LocalStore\n"
        f"with hold_run_lock(LocalStore(Path({config['out']!r}))):\n"
        "    print('here', flush=True)\n    time.sleep(600)\n"
    )
    driver = warm.Process(["python", "-c", script])
    assert driver.stdout.readline() == "here\n"
    monkeypatch.setattr(wait_module, "_GRACE_SECONDS", 0.5)
    threading.Timer(0.7, driver.send_signal, [signal.SIGKILL]).start()
    with pytest.raises(RunDiedError, match=rf"process {driver.child}.*has died"):
        wait(tmp_path / "out", 300)
    driver.wait()
