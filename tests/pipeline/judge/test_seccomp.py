"""The filter of system calls against the kernel's own tables, and run in a small interpreter of its instructions."""

import errno
import re
import struct
from pathlib import Path

import pytest
from packtrain.pipeline.judge.seccomp import program_filter
from packtrain.schemas.errors import ConfigError

TABLES = {
    "x86_64": (0xC000003E, Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")),
    "aarch64": (0xC00000B7, Path("/usr/include/asm-generic/unistd.h")),
}
ALLOW, KILL = 0x7FFF0000, 0x80000000
DENIED = 0x00050000 | errno.EPERM
NEEDED = (
    "read", "write", "openat", "close", "mmap", "munmap", "brk", "execve", "exit_group", "wait4", "pipe2",
    "dup3", "fcntl", "futex", "getrandom", "lseek", "getdents64", "unlinkat", "mkdirat", "rt_sigaction",
    "kill", "setrlimit", "clock_nanosleep", "ppoll", "set_robust_list", "prlimit64", "getuid", "sched_yield",
    "newfstatat",
)  # fmt: skip
FORBIDDEN = (
    "socket", "ptrace", "mount", "umount2", "unshare", "setns", "bpf", "keyctl", "io_uring_setup", "memfd_create",
    "shmget", "process_vm_readv", "process_vm_writev", "perf_event_open", "userfaultfd", "fchmodat",
    "fchownat", "utimensat", "setxattr", "setpriority", "sched_setaffinity", "chroot", "pivot_root", "personality",
    "reboot", "move_mount", "open_tree", "fsopen", "pidfd_getfd", "init_module", "finit_module", "kexec_load",
    "acct", "syslog", "timer_create", "inotify_init1",
)  # fmt: skip


def numbers(machine: str) -> dict[str, int]:
    table = TABLES[machine][1]
    if not table.exists():
        pytest.skip(f"{table} is not here")
    found = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", table.read_text())
    return {("newfstatat" if name == "fstatat" else name): int(number) for name, number in found}


def verdict(machine: str, number: int, first: int = 0, architecture: int | None = None) -> int:
    """What the kernel would do, by the semantics of classic BPF."""
    data = struct.pack("<IIQQ", number, TABLES[machine][0] if architecture is None else architecture, 0, first)
    code = program_filter(machine)
    lines = [struct.unpack_from("<HBBI", code, place) for place in range(0, len(code), 8)]
    place = accumulator = 0
    while True:
        operation, yes, no, value = lines[place]
        place += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
            continue
        tests = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}
        place += yes if tests[operation] else no


@pytest.mark.parametrize("machine", TABLES)
def test_calls_by_name(machine: str) -> None:
    table = numbers(machine)
    assert {name: verdict(machine, table[name]) for name in NEEDED if name in table} == {
        name: ALLOW for name in NEEDED if name in table
    }
    assert {name: verdict(machine, table[name]) for name in FORBIDDEN} == dict.fromkeys(FORBIDDEN, DENIED)
    assert verdict(machine, table["clone3"]) == 0x00050000 | errno.ENOSYS


@pytest.mark.parametrize("machine", TABLES)
def test_calls_by_their_first_argument(machine: str) -> None:
    table = numbers(machine)
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, table["clone"], flag | 17) == DENIED
    for other in (0x1200011, 17, 0x100 | 17, 0x4000 | 0x100 | 17):  # processes, by fork and vfork
        assert verdict(machine, table["clone"], other) == DENIED
    for name in {"fork", "vfork"} & table.keys():
        assert verdict(machine, table[name]) == DENIED
    assert verdict(machine, table["clone"], 0x3D0F00) == ALLOW  # a thread
    assert [verdict(machine, table["prlimit64"], process) for process in (0, 1)] == [ALLOW, DENIED]
    families = [verdict(machine, table["socketpair"], family) for family in range(50)]
    assert families == [DENIED, ALLOW, *[DENIED] * 48]  # AF_UNIX


def test_other_architectures_and_their_numbers() -> None:
    assert verdict("x86_64", 0, architecture=0x40000003) == KILL  # 32 bits
    assert verdict("x86_64", 0x40000000) == KILL  # x32
    with pytest.raises(ConfigError, match="no sandbox for machines of type 'riscv64'"):
        program_filter("riscv64")
