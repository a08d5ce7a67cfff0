"""What the parent does while a test runs: feeds it, gathers what comes out, and has it stopped at a limit."""

import json
import os
import selectors
import signal
import socket
import time
from pathlib import Path
from typing import Any

from .folders import is_over
from .programs import Ending, Execution, ProgramLimits

GRACE_SECONDS = 5.0
"""How long a driver may take to end a test that it was asked to end."""
_STDERR_BYTES = 4096
_CHUNK = 1 << 16
_FOLDER_SECONDS = 0.05
_STOP_SECONDS = 0.2
STDIN, STDOUT, STDERR, RESULT = range(4)


class Watch:
    """One test, from its first byte of input to the driver's word that all its processes have ended."""

    def __init__(
        self, control: socket.socket, limits: ProgramLimits, outside: Path | None, test: bytes, ours: list[int]
    ) -> None:
        self._control, self._limits, self._outside = control, limits, outside
        self._input = memoryview(test)
        self._said: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray(), RESULT: bytearray()}
        self._errors = 0
        self._stopped: Ending | None = None
        self._started = time.monotonic()
        self._deadline = self._started + limits.wall_seconds
        self._selector = selectors.DefaultSelector()
        self._pipes = dict(enumerate(ours))
        self._call = RESULT in self._pipes
        for which, fd in self._pipes.items():
            self._selector.register(fd, selectors.EVENT_READ if which else selectors.EVENT_WRITE, which)
        self._selector.register(control, selectors.EVENT_READ)
        if not test:
            self._drop(STDIN)

    def follow(self) -> dict[str, Any] | None:
        """The driver's answer; None if it died, or does not answer in time when it is asked to stop."""
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                if self._stopped:
                    return None
                self._stop(Ending.timeout)
                continue
            if self._limits.stop is not None and self._limits.stop.is_set() and not self._stopped:
                self._stop(Ending.timeout)
            pause = _FOLDER_SECONDS if self._outside else _STOP_SECONDS if self._limits.stop is not None else left
            for key, _ in self._selector.select(min(left, pause)):
                if key.fileobj is self._control:
                    try:
                        answer = self._control.recv(_CHUNK)
                    except ConnectionError:
                        return None
                    return dict(json.loads(answer)) if answer else None
                if key.data in self._pipes:
                    self._move(key.data)
            if self._outside and not self._stopped and is_over(self._outside, self._limits.file_bytes):
                self._stop(Ending.error)

    def _stop(self, ending: Ending) -> None:
        self._stopped = ending
        self._deadline = time.monotonic() + GRACE_SECONDS
        try:
            self._control.send(b"stop")
        except OSError:  # it has gone, which `follow` finds out
            self._deadline = time.monotonic()

    def _drop(self, which: int) -> None:
        fd = self._pipes.pop(which)
        self._selector.unregister(fd)
        os.close(fd)

    def _move(self, which: int) -> bool:
        """Moves what is ready on one pipe; False if there is nothing."""
        fd = self._pipes[which]
        try:
            if which == STDIN:
                self._input = self._input[os.write(fd, self._input[:_CHUNK]) :]
                if not self._input:
                    self._drop(STDIN)
                return True
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        except BrokenPipeError:  # it has closed its stdin, or ended
            self._drop(which)
            return False
        if not data:
            self._drop(which)
            return False
        self._keep(which, data)
        return True

    def _keep(self, which: int, data: bytes) -> None:
        said, most = self._said[which], self._limits.output_bytes
        said += data
        if which == STDERR:
            self._errors += len(data)
            over = self._errors > most
            del said[:-_STDERR_BYTES]
        else:
            over = len(said) > most + (32 if which == RESULT else 0)
            del said[most + 32 :]
        if over and not self._stopped:
            self._stop(Ending.output_limit)

    def close(self) -> None:
        """Takes what is still in the pipes, whose writers have ended, and closes them."""
        for which in (STDOUT, STDERR, RESULT):
            while which in self._pipes and self._move(which):
                pass
        for which in list(self._pipes):
            self._drop(which)
        self._selector.close()

    def execution(self, answer: dict[str, Any] | None, nonce: bytes) -> Execution:
        """What came of the test, by the driver's answer; None for a driver that did not live to give one."""
        stderr = bytes(self._said[STDERR]).decode(errors="replace")
        value = bytes(self._said[RESULT])
        if answer is None:
            wall, cpu = time.monotonic() - self._started, 0.0
            ending = self._stopped or Ending.error
        else:
            wall, cpu = float(answer["wall"]), float(answer["cpu"])
            ending = self._ending(int(answer["status"]), wall, cpu, stderr)
        proved = value.startswith(nonce) and len(value) > len(nonce)
        if self._call and ending is Ending.finished and not proved:
            ending = Ending.error
        return Execution(
            ending=ending,
            output=bytes(self._said[STDOUT][: self._limits.output_bytes]),
            value=value[len(nonce) :] if self._call and ending is Ending.finished else None,
            stderr=stderr,
            wall_seconds=wall,
            cpu_seconds=cpu,
        )

    def _ending(self, status: int, wall: float, cpu: float, stderr: str) -> Ending:
        if self._stopped:
            return self._stopped
        limits = self._limits
        if status == -signal.SIGXCPU or cpu > limits.cpu_seconds or wall > limits.wall_seconds:
            return Ending.timeout
        if status == 0:
            return Ending.finished
        last = stderr.rstrip().rpartition("\n")[2]
        return Ending.memory if last.startswith("MemoryError") or "[Errno 12]" in last else Ending.error
