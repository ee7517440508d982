"""Solvers written as plain Python, compiled by numba and run over a whole batch on all CPU cores."""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["compile_function", "has_numba", "has_triton", "prange", "pytorch_threads", "run"]

prange = range
"""In a compiled function: the loop over problems that the threads share."""


@functools.cache
def has_numba() -> bool:
    """Whether numba can be imported."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


@functools.cache
def has_triton() -> bool:
    """Whether Triton, in which GPU kernels are written, is installed."""
    return importlib.util.find_spec("triton") is not None


@contextmanager
def pytorch_threads() -> Iterator[None]:
    """Let numba use as many threads as PyTorch may, and leave PyTorch's own number alone.

    numba's OpenMP layer sets the number of threads of the whole process, which PyTorch reads.
    """
    import numba

    config: Any = numba.config
    allowed = torch.get_num_threads()
    before = numba.get_num_threads()
    numba.set_num_threads(min(allowed, config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        numba.set_num_threads(before)
        if torch.get_num_threads() != allowed:
            torch.set_num_threads(allowed)


def compile_function(
    function: Callable[..., Any], *, parallel: bool = False, reorder_sums: bool = True, **names: Any
) -> Callable[..., Any]:
    """The function compiled by numba, kept on disk between processes.

    numba is imported here and not with the module, so that argrad can be imported without it. ``numba.guvectorize``
    would do the loop over a batch by itself, but its files on disk crash the process when two processes make them at
    once (numba issue 10128).

    Args:
        function: plain Python over arrays.
        parallel: whether its ``prange`` loop is divided among threads.
        reorder_sums: lets them be vectorised; infinities keep their meaning.
        names: what it calls, compiled already.
    """
    try:
        import numba
    except ImportError as error:
        raise ImportError("this solver is compiled with numba, which is not installed: pip install numba") from error
    assert isinstance(function, FunctionType)
    known = {**function.__globals__, **names, "prange": numba.prange}
    linked = FunctionType(function.__code__, known, function.__name__)
    linked.__module__, linked.__qualname__ = function.__module__, function.__qualname__
    fastmath = {"reassoc", "contract", "nsz"} if reorder_sums else False
    compiled: Callable[..., Any] = numba.njit(
        cache=True, parallel=parallel, nogil=True, error_model="numpy", fastmath=fastmath
    )(linked)
    return compiled


@functools.cache
def compile_loop(loop: Callable[..., None], kernel: Callable[..., None]) -> Callable[..., None]:
    """A loop over problems that calls a kernel for each, compiled."""
    compiled = compile_function(kernel, reorder_sums=False)
    return compile_function(loop, parallel=True, reorder_sums=False, **{kernel.__name__: compiled})


def run(loop: Callable[..., None], kernel: Callable[..., None], *matrices: Tensor) -> Tensor:
    """Solve for square matrices ``[*batch, n, n]``, which broadcast, in float64; the result is like the first of them.

    Tensors on another device are copied to the CPU and the result back, which waits for the device: this cannot be
    captured in a CUDA graph, compiled or mapped over with vmap.

    Args:
        loop: reads arrays ``[N, n, n]`` and fills the last one, calling the kernel for each problem in ``prange``; in
            the same file as the kernel, so that its copy on disk is made anew when the kernel changes.
        kernel: reads matrices and fills the last one; may not call other Python functions.
        matrices: what is read.
    """
    first = matrices[0]
    lead = torch.broadcast_shapes(*(matrix.shape[:-2] for matrix in matrices))
    arrays: list[NDArray[np.float64]] = [
        matrix.detach()
        .to("cpu", torch.float64)
        .expand(*lead, *matrix.shape[-2:])
        .reshape(-1, *matrix.shape[-2:])
        .contiguous()
        .numpy()
        for matrix in matrices
    ]
    z = np.empty_like(arrays[0])
    compiled = compile_loop(loop, kernel)
    with pytorch_threads():
        compiled(*arrays, z)
    return torch.from_numpy(z).reshape(*lead, *z.shape[-2:]).to(first.device, first.dtype)
