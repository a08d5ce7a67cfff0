"""Downloads remote shards before their rows are needed."""

import logging
from concurrent.futures import ThreadPoolExecutor

from ...schemas.errors import PacktrainError
from ..order.global_order import GlobalOrder

_LOG = logging.getLogger(__name__)
_THREADS = 4


class ShardsAhead:
    """Downloads the next shards of an order into the cache.

    Args:
        global_order: the order.
        total: number of positions of the order.
        rows: minimum number of rows to look ahead.
        room: bytes of the cache that shards which are not used yet may fill.
    """

    def __init__(self, global_order: GlobalOrder, total: int, rows: int, room: int) -> None:
        self.global_order, self.total, self.room = global_order, total, room
        parts = global_order.corpus.parts
        shards = sum(len(part.shards) for part in parts)
        self.rows = max(rows, 2 * len(global_order.corpus) // max(shards, 1))
        self._until = -1
        self._asked: dict[tuple[int, int], int] = {}
        self._turn = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="packtrain-shards")

    def move(self, position: int) -> None:
        """Request the shards after a position. Cheap if little has changed."""
        begin = max(position, self._until)
        if begin >= min(position + self.rows // 2 + 1, self.total):
            return
        corpus, taken = self.global_order.corpus, 0
        # Searched in pieces, because an order may have many more shards than the cache holds.
        while begin < min(position + self.rows, self.total) and taken < self.room:
            end = min(begin + 256, self.total)
            for row in self.global_order.near(begin, end).tolist():
                part, index = corpus.locate(row)
                shard = corpus.parts[part].shard_of(index)
                if (part, shard) not in self._asked:
                    taken += corpus.parts[part].shards[shard].bytes
                    self._pool.submit(self._fetch, part, shard)
                self._asked[part, shard] = self._turn
            begin = end
        # Shards that were not needed lately may have been evicted; they are requested again when needed.
        self._asked = {key: turn for key, turn in self._asked.items() if turn >= self._turn - 1}
        self._turn += 1
        self._until = begin

    def close(self) -> None:
        """Stop requesting shards."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, part: int, shard: int) -> None:
        try:
            self.global_order.corpus.parts[part].fetch(shard)
        except PacktrainError as error:  # reading the shard will raise the error again
            _LOG.debug("fetching ahead: %s", error)
