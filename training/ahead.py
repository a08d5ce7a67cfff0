"""Fetches remote shards before their rows are wanted, so that a step does not wait for a download."""

import logging
from concurrent.futures import ThreadPoolExecutor

from ..schemas.errors import PacktrainError
from .stream import RowStream

_LOG = logging.getLogger(__name__)
_THREADS = 4


class ShardsAhead:
    """Keeps the next shards of an order coming into the cache.

    Args:
        stream: the order.
        total: its positions.
        rows: how far to look ahead, at least.
        room: bytes of the cache that shards may take before they are used.
    """

    def __init__(self, stream: RowStream, total: int, rows: int, room: int) -> None:
        self.stream, self.total, self.room = stream, total, room
        parts = stream.corpus.parts
        shards = sum(len(part.shards) for part in parts)
        self.rows = max(rows, 2 * len(stream.corpus) // max(shards, 1))
        self._until = -1
        self._asked: dict[tuple[int, int], int] = {}
        self._turn = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="packtrain-shards")

    def move(self, position: int) -> None:
        """The loader stands at a position: ask for what comes next. Cheap when little has changed."""
        begin = max(position, self._until)
        if begin >= min(position + self.rows // 2 + 1, self.total):
            return
        corpus, taken = self.stream.corpus, 0
        # In pieces, so that an order over many more shards than the cache holds is not looked at for nothing.
        while begin < min(position + self.rows, self.total) and taken < self.room:
            end = min(begin + 256, self.total)
            for row in self.stream.near(begin, end).tolist():
                part, index = corpus.locate(row)
                shard = corpus.parts[part].shard_of(index)
                if (part, shard) not in self._asked:
                    taken += corpus.parts[part].shards[shard].bytes
                    self._pool.submit(self._fetch, part, shard)
                self._asked[part, shard] = self._turn
            begin = end
        # What was not wanted lately may have been evicted: it is asked for again when its turn comes.
        self._asked = {key: turn for key, turn in self._asked.items() if turn >= self._turn - 1}
        self._turn += 1
        self._until = begin

    def close(self) -> None:
        """Ask for nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, part: int, shard: int) -> None:
        try:
            self.stream.corpus.parts[part].fetch(shard)
        except PacktrainError as error:  # whoever needs the shard meets the error again, and reports it
            _LOG.debug("fetching ahead: %s", error)
