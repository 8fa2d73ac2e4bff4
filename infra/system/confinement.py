"""Confinement of a process that reads bytes nobody vouches for: no network, no writing, no other programs.

Landlock (files and TCP; Linux 5.13, see landlock(7)) and a seccomp filter (system calls; x86-64 and arm64) are used
where the kernel has them. Both bind the calling thread and those that it starts, cannot be undone, and need no
privileges.
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_READ = 1 << 2 | 1 << 3
"""Read files, and list folders."""
_READ_FILE = 1 << 2
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Kinds of access to files that are known from a version of Landlock on."""
_NETWORK_FROM, _SCOPES_FROM = 4, 6
_BIND_AND_CONNECT, _SOCKETS_AND_SIGNALS = 3, 3
_EPERM = 1
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | _EPERM
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_X32 = 0x40000000
_REFUSED = (
    "socket connect bind execve execveat ptrace process_vm_readv process_vm_writev mount unshare setns keyctl bpf "
    "perf_event_open io_uring_setup userfaultfd"
).split()
_NUMBERS = {
    "x86_64": (0xC000003E, (41, 42, 49, 59, 322, 101, 310, 311, 165, 272, 308, 250, 321, 298, 425, 323)),
    "aarch64": (0xC00000B7, (198, 203, 200, 221, 281, 117, 270, 271, 40, 97, 268, 219, 280, 241, 425, 282)),
}
"""Audit name of the architecture, and its numbers of the refused calls."""
_LIBRARIES = ("/usr", "/lib", "/lib64", "/opt", "/nix/store", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
_WRITTEN = 2**20
"""Bytes that may be written to a file that is open already: the log of the process."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What confines a process."""

    landlock: int
    """Version of Landlock; 0: it may read every file that its user may."""
    seccomp: bool
    """Whether system calls for network, other programs and other processes are refused."""

    def __str__(self) -> str:
        if not self.landlock and not self.seccomp:
            return "the rights of its user: this system has neither Landlock nor seccomp"
        files = "no other files" if self.landlock else "the files of its user (the kernel has no Landlock)"
        return f"{files}, {'no network, no other programs' if self.seccomp else 'network (there is no seccomp)'}"


def available() -> Confinement:
    """Return what this system can confine a process by."""
    if sys.platform != "linux":
        return Confinement(0, False)
    landlock_version = max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))
    return Confinement(landlock_version, platform.machine() in _NUMBERS and _seccomp_is_there())


def confine() -> Confinement:
    """Confine the calling thread, and those that it starts from now on; return what holds.

    Files that are open already stay open. Of others it reads Python's modules and the system's libraries.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_WRITTEN, _WRITTEN))
    found = available()
    if (found.landlock or found.seccomp) and _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return Confinement(0, False)
    if found.landlock:
        # Editable packages are not on the path.
        packages = (place for module in [*sys.modules.values()] for place in getattr(module, "__path__", ()))
        folders = (*filter(None, sys.path), sys.prefix, sys.base_prefix, *packages)
        _restrict_files(found.landlock, [*folders, *_LIBRARIES, *_DEVICES])
    if found.seccomp:
        _refuse_calls(platform.machine())
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _seccomp_is_there() -> bool:
    # The kernel refuses a filter at no address with EFAULT, one of an unknown mode with EINVAL.
    if _libc().prctl(_PR_SET_SECCOMP, _FILTER, None, 0, 0) == 0:
        return False
    return ctypes.get_errno() == 14


def _restrict_files(version: int, readable: Sequence[str]) -> None:
    rights = _FILE_RIGHTS[max(known for known in _FILE_RIGHTS if known <= version)]
    fields = [(1 << rights) - 1]
    if version >= _NETWORK_FROM:
        fields.append(_BIND_AND_CONNECT)
    if version >= _SCOPES_FROM:
        fields.append(_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = _called(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        for path in dict.fromkeys(readable):
            with suppress(OSError):
                _allow_reading(rules, path)
        _called(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow_reading(rules: int, path: str) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", _READ if os.path.isdir(path) else _READ_FILE, place)
        _called(_ADD_RULE, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(place)


def _called(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number} was refused")
    return result


def _refuse_calls(machine: str) -> None:
    """Install the filter: another architecture's calls and those of `_REFUSED` fail with EPERM."""
    audit, numbers = _NUMBERS[machine]
    refuse = len(numbers) + 5  # a jump counts from the step after it
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 0, refuse - 2, audit), (_LOAD, 0, 0, 0), (_AT_LEAST, refuse - 4, 0, _X32)]
    steps += [(_EQUAL, refuse - at - 1, 0, number) for at, number in enumerate(numbers, start=4)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    head = struct.pack("@HP", len(steps), ctypes.addressof(program))
    if _libc().prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(head), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of system calls was refused")
