"""Test whether ranks of one host may read each other's memory. Some systems and containers forbid it."""

from __future__ import annotations

import ctypes
import errno
import os

import numpy as np

__all__ = ["Probe", "can_read", "read_memory"]


class Probe:
    """Eight bytes of this process that peers try to read."""

    def __init__(self) -> None:
        self._bytes = np.frombuffer(os.urandom(8), np.uint64).copy()
        self.address = int(self._bytes.__array_interface__["data"][0])
        self.value = int(self._bytes[0])


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(pid: int, address: int, into: int, length: int) -> int:
    """Read memory of another process to an address of this one; how many bytes, or -1 with ctypes.get_errno()."""
    read = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if read is None:
        ctypes.set_errno(errno.ENOSYS)
        return -1
    mine, theirs = _Range(into, length), _Range(address, length)
    read.restype = ctypes.c_ssize_t
    read.argtypes = [ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong]
    return int(read(pid, ctypes.addressof(mine), 1, ctypes.addressof(theirs), 1, 0))


def can_read(pid: int, address: int, value: int) -> bool:
    """Whether this process can read another's probe."""
    found = ctypes.c_uint64()
    return read_memory(pid, address, ctypes.addressof(found), 8) == 8 and found.value == value
