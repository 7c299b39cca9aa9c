"""Files that are no data but hold it packed, told by how they begin.

Headerless data begins with any bytes, so bytes alone cannot prove what a file is. A beginning counts as a container's
only when it is fixed to at least 27 bits, which data begins with by chance once in a hundred million files. Such data
is refused too: what no setting can overrule, no setting can get wrong.

========= ==========================================================================================
gzip      ``1f 8b 08`` (its only method), then flags whose three reserved bits are 0
zip       ``PK 03 04``
zstd      ``28 b5 2f fd``
xz        ``fd 37 7a 58 5a 00``
bzip2     ``BZh``, a level ``1`` to ``9``, then a block or the end of the stream
Git LFS   ``version https://git-lfs``
========= ==========================================================================================
"""

from flodl_pipe.errors import SourceError

__all__ = ["CONTAINER_HEAD_BYTES", "refuse_container"]

CONTAINER_HEAD_BYTES = 32
"""Bytes of a file's beginning that tell any container."""

_UNPACK = "unpack it and give the unpacked file"
_MAGICS = (
    (b"PK\x03\x04", f"a zip archive, not the data; {_UNPACK} (of an .npz: save one array with np.save)"),
    (b"\x28\xb5\x2f\xfd", f"zstd-compressed; {_UNPACK} (zstd -d)"),
    (b"\xfd7zXZ\x00", f"xz-compressed; {_UNPACK} (xz -d)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the data; run `git lfs pull`"),
)
# A bzip2 stream goes on with its first block, or with its end when it holds nothing.
_BZIP2_NEXT = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90")


def refuse_container(name: str, head: bytes) -> None:
    """Refuse a file that is packed.

    Args:
        name: Path, for the message.
        head: The first ``CONTAINER_HEAD_BYTES`` of the file or more, or all of a shorter one.

    Raises:
        SourceError: naming the file, what it is, and what to do.
    """
    kind = _kind(head)
    if kind is not None:
        raise SourceError(f"{name}: it is {kind}")


def _kind(head: bytes) -> str | None:
    if head[:3] == b"\x1f\x8b\x08" and len(head) > 3 and head[3] <= 0x1F:
        return f"gzip-compressed; {_UNPACK} (gzip -d)"
    if head[:3] == b"BZh" and head[3:4] in b"123456789" and head[4:10] in _BZIP2_NEXT:
        return f"bzip2-compressed; {_UNPACK} (bzip2 -d)"
    return next((kind for magic, kind in _MAGICS if head.startswith(magic)), None)
