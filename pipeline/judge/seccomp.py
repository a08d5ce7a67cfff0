"""A filter of system calls for programs of unknown origin, as classic BPF for seccomp.

It takes away what a program of a model never needs and what kernels have been attacked through: new namespaces and
mounts, sockets (pairs of Unix sockets stay, asyncio needs them), tracing and limits of other processes, memory that no
limit counts (memfd, System V, timers, inotify), keys, BPF, io_uring, modules, clocks; and other processes: a program
may start nothing but threads. All that is not listed is allowed.
"""

import errno
import struct

from ...schemas.errors import ConfigError

# Name: number on x86-64, number on ARM64 (None: not there).
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "ptrace": (101, 117), "kcmp": (312, 272),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "move_pages": (279, 239), "migrate_pages": (256, 238),
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "socket": (41, 198), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "timer_create": (222, 107),
    "inotify_init": (253, None), "inotify_init1": (294, 26),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "open_tree_attr": (467, 467), "file_setattr": (469, 469),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "personality": (135, 92), "vhangup": (153, 58), "lookup_dcookie": (212, 18),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
}  # fmt: skip
# Numbers on both machines, as in `_DENIED`.
_CLONE = (56, 220)
_CLONE3 = (435, 435)
# (numbers on both machines, first argument): calls that are allowed with this first argument alone: prlimit64 of the
# process itself, socketpair of AF_UNIX.
_ALLOWED_FOR = (((302, 261), 0), ((53, 199), 1))
_CLONE_NAMESPACES = 0x7E020000  # all CLONE_NEW* flags of clone
_CLONE_THREAD = 0x10000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_X32_BIT = 0x40000000
"""Set in the numbers of x86-64's second set of system calls, for programs with short pointers."""

# Instructions of classic BPF: load a word of `struct seccomp_data`; jump if it equals, is at least, or shares a bit
# with the operand; return the operand, which is what the kernel does with the call.
_LOAD = 0x20
_JUMP_IF_EQUAL = 0x15
_JUMP_IF_AT_LEAST = 0x35
_JUMP_IF_ANY_BIT = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
# Offsets in `struct seccomp_data`.
_NUMBER = 0
_ARCHITECTURE = 4
_FIRST_ARGUMENT = 16

_Instruction = tuple[int, int, int, int]
"""(code, instructions to skip if a condition holds, and if it does not, operand)."""


def _refuse(error_number: int) -> _Instruction:
    """The call fails with an error number, as if the kernel did not allow it."""
    return (_RETURN, 0, 0, 0x00050000 | error_number)  # SECCOMP_RET_ERRNO


def program_filter(machine: str) -> bytes:
    """The filter for programs on a type of machine: BPF instructions of 8 bytes.

    Args:
        machine: its type, as `os.uname` names it.

    Raises:
        ConfigError: its system calls are not known.
    """
    if machine not in _ARCHITECTURES:
        raise ConfigError(f"no sandbox for machines of type {machine!r}: use one of {', '.join(_ARCHITECTURES)}")
    column = list(_ARCHITECTURES).index(machine)
    # A jump has two numbers: how many instructions it skips if its condition holds, and if not.
    #
    # Numbers of system calls mean something only for one architecture; a process that switches to another is killed.
    # If the architecture is the right one, the second instruction skips 1, the kill, and else 0.
    instructions: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    # Smaller numbers skip the kill.
    if machine == "x86_64":
        instructions += [(_JUMP_IF_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    # Other calls skip the refusal behind the comparison.
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            instructions += [(_JUMP_IF_EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    # The flags of clone3 are in memory, where no filter can look. A C library that learns that the kernel does not
    # know clone3 uses clone, whose flags are its first argument.
    instructions += [(_JUMP_IF_EQUAL, 0, 1, _CLONE3[column]), _refuse(errno.ENOSYS)]
    # clone: allowed for threads, without any new namespace.
    instructions += [
        (_JUMP_IF_EQUAL, 0, 5, _CLONE[column]),  # other calls skip these five
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF_ANY_BIT, 1, 0, _CLONE_NAMESPACES),  # over the next one, to the refusal
        (_JUMP_IF_ANY_BIT, 1, 0, _CLONE_THREAD),  # over the refusal, to what allows
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for numbers, allowed_argument in _ALLOWED_FOR:
        instructions += [
            (_JUMP_IF_EQUAL, 0, 4, numbers[column]),  # other calls skip these four
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_JUMP_IF_EQUAL, 1, 0, allowed_argument),  # over the refusal, to what allows
            _refuse(errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    instructions.append((_RETURN, 0, 0, _ALLOW))
    # The code has 2 bytes, each jump 1, and the operand 4.
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
