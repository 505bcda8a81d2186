"""Decode and encode arrays and tensors: npy, npz, tenbin, torch weights, safetensors.

torch and safetensors are imported when first used.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.shards.fields import tenbin
from wids.shards.fields.safety import RefusedError, check_archive

_ZIP_SIGNATURE: Final = b"PK\x03\x04"


def decode_npy(data: bytes) -> Any:
    """Return the array of an ``.npy`` file; reject arrays of objects."""
    # Not `np.load`, which would also open archives, whose members have no limit.
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def encode_npy(value: Any) -> bytes:
    """Return an array as an ``.npy`` file; reject arrays of objects."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


def decode_npz(data: bytes, max_nbytes: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name; see `check_archive` for the limit."""
    check_archive(data, max_nbytes)
    with np.load(io.BytesIO(data), allow_pickle=False) as members:
        # Read all now: an NpzFile reads each array at its first use, where an error would no longer
        # name the sample.
        return dict(members)


def encode_npz(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays by name as an ``.npz`` file."""
    values = {str(name): np.asarray(array) for name, array in arrays.items()}
    # Check before writing: an array of objects would need a pickle, which readers reject (SEC-5).
    if any(array.dtype.hasobject for array in values.values()):
        raise ValueError("expected arrays of numbers or text, found one of objects")
    stream = io.BytesIO()
    # Not numpy's `savez`, which takes the arrays as keyword arguments and so cannot store one named
    # "file". A ZipInfo has a fixed time, so the same arrays become the same bytes.
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in values.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array))
    return stream.getvalue()


def encode_tenbin(value: Any) -> bytes:
    """Return an array, or a list or tuple of arrays, in webdataset's tensor format."""
    return tenbin.dumps(value if isinstance(value, list | tuple) else [value])


def decode_torch_weights(data: bytes, max_nbytes: int | None = None) -> Any:
    """Return what ``torch.save`` stored, on the CPU; reject anything but weights.

    See `check_archive` for the limit.
    """
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise RefusedError(
            f"expected torch 2.6 or later to read weights, found {torch.__version__}, which can be "
            "made to execute code (CVE-2025-32434)"
        )
    if data.startswith(_ZIP_SIGNATURE):  # as torch distinguishes archives from its pre-1.6 format
        check_archive(data, max_nbytes)
    # On the CPU, since workers of a DataLoader must not touch a GPU.
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def encode_torch_weights(value: Any) -> bytes:
    """Return a value as ``torch.save`` stores it."""
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def decode_safetensors(data: bytes) -> Any:
    """Return the tensors of a safetensors file by name."""
    return import_module("safetensors.torch").load(data)


def encode_safetensors(tensors: Mapping[str, Any]) -> Any:
    """Return tensors or arrays by name as a safetensors file."""
    import torch

    # safetensors rejects tensors whose memory is not contiguous.
    values = {name: torch.as_tensor(tensor).contiguous() for name, tensor in tensors.items()}
    return import_module("safetensors.torch").save(values)
