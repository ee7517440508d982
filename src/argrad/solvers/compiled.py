"""Kernels for one problem, written as plain Python, compiled by numba and run over a whole batch on all CPU cores."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Kernel", "has_numba", "pytorch_threads", "run"]

Kernel = Callable[..., None]
"""Reads float64 matrices and fills the last one."""


@functools.cache
def has_numba() -> bool:
    """Whether numba can be imported."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


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


@functools.cache
def compile_kernel(kernel: Kernel, arguments: int) -> Any:
    """A NumPy function over any leading dimensions, which broadcast; kept on disk between processes.

    A kernel may not call other Python functions. Examples are divided among the threads.
    """
    try:
        from numba import guvectorize
    except ImportError as error:
        raise ImportError("this solver is compiled with numba, which is not installed: pip install numba") from error
    matrix, shape = "float64[:,:]", "(n,n)"
    signature = f"void({', '.join([matrix] * (arguments + 1))})"
    layout = f"{','.join([shape] * arguments)}->{shape}"
    vectorize: Any = guvectorize  # numba carries no annotations
    return vectorize([signature], layout, target="parallel", cache=True)(kernel)


def run(kernel: Kernel, *matrices: Tensor) -> Tensor:
    """Apply a kernel to square matrices ``[*batch, n, n]`` in float64; the result is like the first of them.

    Tensors on another device are copied to the CPU and the result back, which waits for the device: this cannot be
    captured in a CUDA graph, compiled or mapped over with vmap.
    """
    first = matrices[0]
    lead = torch.broadcast_shapes(*(matrix.shape[:-2] for matrix in matrices))
    # One long dimension: over broadcast ones NumPy would start the threads anew for every row of the last.
    arrays: list[NDArray[np.float64]] = [
        matrix.detach().to("cpu", torch.float64).expand(*lead, *matrix.shape[-2:]).flatten(0, -3).numpy()
        if lead
        else matrix.detach().to("cpu", torch.float64).numpy()
        for matrix in matrices
    ]
    compiled = compile_kernel(kernel, len(arrays))
    with np.errstate(all="ignore"), pytorch_threads():  # kernels meet −inf, and NaN where nobody checked, on purpose
        result = torch.from_numpy(compiled(*arrays))
    return result.reshape(*lead, *result.shape[-2:]).to(first.device, first.dtype)
