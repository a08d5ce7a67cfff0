"""What a worker process imports: every task, and nothing that a task does not need (no torch, no transformers)."""

from ..schemas.manifest import FileRecord
from .checking import CheckResult, CheckTask, check_files
from .documents import DocumentsTask, write_documents
from .encode import EncodeResult, EncodeTask, encode_block
from .pack import PackResult, PackTask, forget_library, pack_shard
from .pairs_task import PairTask, forget_segments, write_pairs
from .resolve import EngineChoice, ResolveTask, choose_engine

Task = EncodeTask | PackTask | PairTask | DocumentsTask | ResolveTask | CheckTask
Result = EncodeResult | PackResult | FileRecord | EngineChoice | CheckResult


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
    if isinstance(task, CheckTask):
        return check_files(task)
    return choose_engine(task)


def forget() -> None:
    """Let go of what tasks of this process keep for the next one."""
    forget_library()
    forget_segments()
