"""What a worker process imports: every task, and nothing that a task does not need (no torch, no transformers)."""

from ..schemas.manifest import FileRecord
from .documents import DocumentsTask, write_documents
from .encode import EncodeResult, EncodeTask, encode_block
from .pack import PackResult, PackTask, pack_shard
from .pairs_task import PairTask, write_pairs
from .resolve import EngineChoice, ResolveTask, choose_engine

Task = EncodeTask | PackTask | PairTask | DocumentsTask | ResolveTask
Result = EncodeResult | PackResult | FileRecord | EngineChoice


def perform(task: Task) -> Result:
    """Run any task."""
    if isinstance(task, EncodeTask):
        return encode_block(task)
    if isinstance(task, PackTask):
        return pack_shard(task)
    if isinstance(task, PairTask):
        return write_pairs(task)
    if isinstance(task, DocumentsTask):
        return write_documents(task)
    return choose_engine(task)
