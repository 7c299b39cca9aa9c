r"""The header of a ``.npy`` file, read as data.

A header is a Python literal, so other quotes, orders and blanks are legal; it is parsed by ``ast.literal_eval``, which
builds values and runs nothing, and only below a size limit.

Layout: magic ``\x93NUMPY``, version (2 bytes), header length (2 bytes in version 1, else 4, little endian), header.
"""

import ast

from flodl_pipe.errors import SourceError

__all__ = ["HEAD_BYTES", "NPY_MAGIC", "parse_npy_header"]

NPY_MAGIC = b"\x93NUMPY"

_MAX_HEADER = 10_000
_AGAIN = "write the file again with np.save"
HEAD_BYTES = 12 + _MAX_HEADER
"""Bytes of a file's beginning that hold any header we accept."""

_DTYPES = {"|u1": "uint8", "<u2": "uint16", "<u4": "uint32", "<i4": "int32", "<i8": "int64"}


def parse_npy_header(name: str, head: bytes) -> tuple[str, int, int]:
    """Return dtype name, offset of the data in bytes, and number of tokens.

    Args:
        name: Path, for messages.
        head: The first ``HEAD_BYTES`` of the file, or all of a shorter one.

    Raises:
        SourceError: if this is no ``.npy`` file, its header is damaged or hostile, or it holds anything but a 1-D
            array of ``|u1 <u2 <u4 <i4 <i8``.
    """
    if not head.startswith(NPY_MAGIC):
        raise SourceError(f"{name}: not a .npy file: {_instead(head)}")
    version, start = head[6:8], 10 if head[6:7] == b"\x01" else 12
    if len(head) < start:
        raise SourceError(f"{name}: truncated inside the .npy header (file of {len(head)} bytes); copy it again")
    if version not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise SourceError(
            f"{name}: .npy header version {version[0]}.{version[1]} is not known; expected 1.0 to 3.0: {_AGAIN}"
        )
    length = int.from_bytes(head[8:start], "little")
    if length > _MAX_HEADER:
        raise SourceError(
            f"{name}: .npy header of {length:,} bytes; a token array's is below {_MAX_HEADER:,}: {_AGAIN}"
        )
    text = head[start : start + length]
    if len(text) < length:
        raise SourceError(
            f"{name}: truncated inside the .npy header: expected {length} bytes, found {len(text)}; copy the file again"
        )
    header = _literal(name, text.decode("utf-8" if version[0] == 3 else "latin1", errors="replace"))
    return _dtype(name, header["descr"]), start + length, _length(name, header["shape"], header["fortran_order"])


def _instead(head: bytes) -> str:
    if not head:
        return "it is empty (0 bytes); remove it or copy it again"
    return (
        f"its magic is {head[:6]!r}, not {NPY_MAGIC!r}; if it is a headerless dump of token ids (OLMo and nanoGPT name "
        "theirs .npy and .bin), read it with source.format=raw and its type, for example source.dtype=uint16"
    )


def _literal(name: str, text: str) -> dict[str, object]:
    try:
        header = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise SourceError(f"{name}: the .npy header is not a plain literal: {text[:80]!r}; {_AGAIN}") from error
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise SourceError(
            f"{name}: the .npy header must hold descr, fortran_order and shape, got {text[:80]!r}; {_AGAIN}"
        )
    return header


def _dtype(name: str, descr: object) -> str:
    if isinstance(descr, str) and descr in _DTYPES:
        return _DTYPES[descr]
    rule = f"tokens must be one of the integer dtypes {' '.join(_DTYPES)}"
    if not isinstance(descr, str):
        kind, remedy = "structured (it has fields)", "save the field of token ids alone"
    elif "O" in descr:
        kind, remedy = "object (a pickle, never loaded)", "join the token lists into one integer array"
    elif descr.startswith(">"):
        kind, remedy = "big-endian", "save array.astype('<u2') or the little-endian type that fits"
    elif "f" in descr:
        kind, remedy = "float", "save the ids as integers"
    else:
        kind, remedy = "not accepted", "save the ids in an accepted type"
    raise SourceError(f"{name}: dtype {str(descr)[:80]!r} is {kind}; {rule}: {remedy}")


def _length(name: str, shape: object, fortran_order: object) -> int:
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise SourceError(f"{name}: the .npy header's shape {shape!r} is not a tuple of sizes; {_AGAIN}")
    if len(shape) != 1:
        order = "Fortran" if fortran_order else "C"
        raise SourceError(
            f"{name}: shape {shape} ({len(shape)} dimensions, {order} order); a token shard must be 1-D: join the rows "
            "with array.reshape(-1) if they follow each other"
        )
    return int(shape[0])
