"""One scan of the inputs for several drivers that share the work: a note of each file in the cache that they share.

Each scans its own share of the files first, then what the others have not, and finds notes of the rest. A note holds
for the same file of the same size, inode and times; of a URL, for the same size and marks of its store. Every block is
held against its hash again when it is encoded.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import msgspec

from ..schemas.fingerprint import fingerprint
from ..schemas.jsontext import decode_note
from .inputs.blocks import InputFile
from .inputs.paths import Kind
from .inputs.spool import FORMAT as CUT_FORMAT
from .live_notes import FORMAT, read_block, read_path, write_note
from .sealed import seal, unseal
from .sources import BLOCK_BYTES, ToScan
from .static import parse_shard, shares, turns
from .store import LocalStore
from .stores import Store


class SharedScan:
    """A scan of which others do a part.

    Args:
        shard: `i/N`, from 0.
        notes: where all of them find the notes.
        scratch: where this machine keeps copies, and blocks of what is compressed.
    """

    def __init__(self, shard: str, notes: Store, scratch: LocalStore) -> None:
        self._index, self._count = parse_shard(shard)
        self._notes = notes
        self._scratch = scratch

    def files(
        self, inputs: Sequence[ToScan], scan: Callable[[ToScan], InputFile], max_row_bytes: int, threads: int
    ) -> list[InputFile]:
        """See `sources.ScanOrder`."""
        done: dict[int, InputFile] = {}

        def look_or_scan(position: int) -> None:
            one = inputs[position]
            name = _note_name(one, max_row_bytes)
            # The first is there in any case: formats are found in its rows.
            if position and name is not None and (known := self._read(name)) is not None:
                done[position] = replace(known, label=one.label)
                return
            done[position] = file = scan(one)
            # Else it changed meanwhile, and the note would be of neither state.
            if name is not None and _note_name(one, max_row_bytes) == name:
                self._notes.replace_bytes(name, seal(b'{"files":' + write_note([file], self._scratch) + b"}"))

        order = turns(shares(range(len(inputs)), self._count), self._index, self._count)
        with ThreadPoolExecutor(max(1, threads)) as pool:
            for _ in pool.map(look_or_scan, order):
                pass  # errors come out here
        return [done[position] for position in range(len(inputs))]

    def _read(self, name: str) -> InputFile | None:
        """What a note says; None where there is none, or where a block that was kept apart is not on this machine."""
        data = unseal(self._notes.read(name))
        if data is None:
            return None
        try:
            (noted,) = decode_note(data, dict[str, Any])["files"]
            blocks = tuple(read_block(entry, self._scratch) for entry in noted.pop("blocks"))
            file = msgspec.convert({**noted, "blocks": ()}, InputFile, dec_hook=read_path)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError, OSError):
            return None
        return replace(file, blocks=blocks)


def _note_name(one: ToScan, max_row_bytes: int) -> str | None:
    """Where the note of a file stands; None where nothing tells whether it is as it was."""
    found, what = one.found, list[Any]()
    if found.kind is Kind.LOCAL:
        try:
            stat = found.path.stat()
        except OSError:
            return None
        what = [str(found.path.absolute()), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
    elif found.kind is Kind.URL and one.far is not None and found.stamp:
        what = [found.name, found.size, found.stamp]
    else:
        return None
    how = [max_row_bytes, BLOCK_BYTES, CUT_FORMAT, version("pyarrow")]
    return f"scans/file-{fingerprint([FORMAT, what, how])}.json"
