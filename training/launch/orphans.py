"""Workers end with the launcher that started them.

torchrun stops its workers when it is stopped. When it is killed they go on, wait for each other or train, hold devices
and write checkpoints. So each looks once a second whether its parent is still the one that started it.
"""

import os
import sys
import threading
import time

from ..printing import print_line

EXIT_CODE = 75
"""Exit code of a worker that stopped because its launcher was gone."""
_WATCHING = threading.Event()


def end_with_launcher() -> None:
    """Watch the parent of this process, if torchrun or accelerate started it, and exit when it is gone.

    A training started by hand goes on without its shell, as with nohup. A shell between launcher and worker, which
    itself goes on waiting, hides that the launcher is gone: use exec there.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or _WATCHING.is_set():
        return
    _WATCHING.set()
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        print_line(
            f"packtrain: the launcher of this worker (process {launcher}) is gone, so process {os.getpid()} ends as "
            "well; the next start repeats the steps since the last checkpoint",
            file=sys.stderr,
        )
        os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="packtrain-launcher-watch", daemon=True).start()
