"""Compile the search's inner loops once and keep the machine code where it can be written or was left by an image build."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from numba import config, njit
from numba.core import caching

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., object]")


def compiled(function: Function) -> Function:
    """Compile ``function`` on its first call without the GIL, with IEEE arithmetic in the order that is written.

    No fast-math, no fused multiply-add, no parallel reduction: every machine rounds alike. The machine code is kept in the
    first of: ``NUMBA_CACHE_DIR``; ``__pycache__`` beside the source; the same read-only, when ``compile_kernels`` filled it
    while the image was built; the user's cache. Without any of these every process compiles anew.
    The function must not make arrays: numba's reference counts, which guard those, are left out, as counting at every call
    takes longer than what is called.
    """
    dispatcher = njit(nogil=True, error_model="numpy", _nrt=False)(function)
    try:
        dispatcher._cache = _Cache(function)  # noqa: SLF001 - what enable_caching does, with other places
    except RuntimeError:  # no place can be read or written
        return cast("Function", dispatcher)
    return cast("Function", dispatcher)


def kernel_threads() -> int:
    """Threads to work with: NUMBA_NUM_THREADS, or the cores that this process may use."""
    return int(config.NUMBA_NUM_THREADS)


class _Stamped:
    """Machine code is fresh only if no kernel file changed: a function is compiled into its callers in other files."""

    def get_source_stamp(self) -> bytes:
        """Digest of every kernel file."""
        digest = hashlib.sha256()
        for file in sorted(Path(__file__).parent.glob("kernel*.py")):
            digest.update(file.read_bytes())
        return digest.digest()


class _Chosen(_Stamped, caching.UserProvidedCacheLocator):  # type: ignore[misc] # numba ships no types
    """The folder that NUMBA_CACHE_DIR names."""


class _Beside(_Stamped, caching.InTreeCacheLocator):  # type: ignore[misc]
    """``__pycache__`` beside the source."""


class _Prebuilt(_Beside):
    """The same where it cannot be written but holds machine code; numba alone would pass over it and compile again."""

    def ensure_cache_path(self) -> None:
        """Refuse a folder without machine code.

        Raises:
            OSError: the folder is absent or holds no machine code.
        """
        if not any(Path(self.get_cache_path()).glob("kernel*.nbi")):
            raise FileNotFoundError(self.get_cache_path())


class _OfUser(_Stamped, caching.UserWideCacheLocator):  # type: ignore[misc]
    """The user's cache."""


class _Places(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Chosen, _Beside, _Prebuilt, _OfUser)


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Places

    def save_overload(self, sig: object, data: object) -> None:
        """Keep machine code, unless the folder was left by an image build and cannot be written."""
        if not isinstance(self._impl.locator, _Prebuilt):
            super().save_overload(sig, data)
