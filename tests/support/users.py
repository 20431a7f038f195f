"""The user who runs the tests, and what depends on it.

Root may enter each folder, so a test about a folder that may not be entered has to give up that right. A
program of another user may enter less than the tests: the checkout or the interpreter can lie in a home
folder that only its owner enters. So no test changes its user by itself. It takes one of these helpers, which
work wherever the checkout lies. `tests/repository/test_whereabouts.py` checks that.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

IS_ROOT: Final = os.geteuid() == 0

NOBODY: Final = 65534
"""The id of the user ``nobody`` and of its group."""

AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")

AS_NOBODY_WHO_OPENS_ALL: Final = (*AS_NOBODY, "--inh-caps=+dac_override", "--ambient-caps=+dac_override")
"""Before a program: it may open the files of the checkout and of the interpreter, wherever they lie."""

AS_NOBODY_WHO_READS_ALL: Final = (
    *AS_NOBODY,
    "--no-new-privs",
    "--bounding-set=-all,+dac_read_search",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
)
"""Before a program: it may read those files, and write where each user may."""

HAS_SETPRIV: Final = shutil.which("setpriv") is not None

CAPABILITIES_VERSION: Final = 0x20080522
CAP_DAC_OVERRIDE: Final = 1
CAP_DAC_READ_SEARCH: Final = 2


def give_to_nobody(folder: str | Path) -> None:
    """Make the user ``nobody`` the owner of a folder, if root runs the tests."""
    if IS_ROOT:
        os.chown(folder, NOBODY, NOBODY)


class _Header(ctypes.Structure):
    """The thread whose capabilities are meant: that of the caller."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    """The lower 32 capabilities of a thread, then the others."""

    _fields_ = tuple(
        (f"{kind}_{part}", ctypes.c_uint32)
        for part in ("low", "high")
        for kind in ("effective", "permitted", "inheritable")
    )


@contextmanager
def without_right_to_enter_all() -> Iterator[None]:
    """Let this thread enter and open only what the modes of folders and files permit, also if it is root's.

    The user stays the same, so the modules that are imported meanwhile are still found.
    """
    if not IS_ROOT:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root may enter each folder")
    library = ctypes.CDLL(None, use_errno=True)
    header, capabilities = _Header(CAPABILITIES_VERSION, 0), _Capabilities()

    def call(name: str) -> None:
        if getattr(library, name)(ctypes.byref(header), ctypes.byref(capabilities)):
            raise OSError(ctypes.get_errno(), name)

    call("capget")
    effective: int = capabilities.effective_low
    capabilities.effective_low = effective & ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    call("capset")
    try:
        yield
    finally:
        capabilities.effective_low = effective
        call("capset")
