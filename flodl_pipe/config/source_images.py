"""Section ``source``, kinds of pictures with labels: ``mnist``, ``fashion_mnist``, ``cifar10`` and its like.

Each kind is a model of its own, made of its family's: they differ in defaults only.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from flodl_pipe.config.base import Count, LocalPath, StrictModel, fault, shown
from flodl_pipe.config.source_base import SourceSection

__all__ = [
    "Cifar10Config",
    "Cifar10DiskConfig",
    "Cifar100Config",
    "CifarConfig",
    "FashionMnistConfig",
    "IdxConfig",
    "IdxFiles",
    "MnistConfig",
]


def _file_name(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise fault(f"must be the name of a file, got {shown(value)}")
    return value


FileName = Annotated[str, AfterValidator(_file_name)]
"""A file in `path`; an absolute path or an address stands for itself."""


class IdxFiles(StrictModel):
    """A pair of IDX files, plain or gzip-compressed, under any names."""

    images: FileName
    """File of the pictures, in `path`; an absolute path or an address stands for itself."""

    labels: FileName
    """File of the labels."""


class _PublishedSet(SourceSection):
    """A data set that is published as a folder of files."""

    kind: str
    """Name of the set."""

    path: LocalPath | None = None
    """Folder of the files, or its address; null: `<data_dir>/<kind>` if it exists, else `if_missing` decides
    (`cifar10_disk` looks where `cifar10` does)."""

    if_missing: Literal["error", "sample"] = "error"
    """With no path and no data folder: stop, or make a small synthetic set of the same format."""

    split: Literal["train", "test"] = "train"
    """Which of the published files; plays no part when `files` names them."""


class IdxConfig(_PublishedSet):
    """A pair of IDX files as MNIST has them, read into memory."""

    files: IdxFiles | None = None
    """Other files than the published ones: `{images, labels}`, names in `path` or absolute paths."""

    num_classes: Count | None = 10
    """Labels must be in 0 .. num_classes - 1; null: any label, also ones that are no single integer."""

    def field_names(self) -> tuple[str, ...]:
        return "image", "label"


class MnistConfig(IdxConfig):
    """MNIST, or files of its format, read into memory."""

    kind: Literal["mnist"] = "mnist"
    """MNIST."""


class FashionMnistConfig(IdxConfig):
    """Fashion-MNIST, read into memory."""

    kind: Literal["fashion_mnist"] = "fashion_mnist"
    """Fashion-MNIST."""


class CifarConfig(_PublishedSet):
    """CIFAR's binary batches."""

    files: Annotated[list[FileName], Field(min_length=1)] | None = None
    """Other files than the published ones, in order: names in `path` or absolute paths."""

    num_classes: Count | None = 10
    """Labels must be in 0 .. num_classes - 1, in all that is read; null: any label."""

    def field_names(self) -> tuple[str, ...]:
        return "image", "label"


class Cifar10Config(CifarConfig):
    """CIFAR-10's binary batches, read into memory."""

    kind: Literal["cifar10"] = "cifar10"
    """CIFAR-10 in memory."""


class Cifar10DiskConfig(CifarConfig):
    """CIFAR-10's binary batches, each record read from the files when it is asked for."""

    kind: Literal["cifar10_disk"] = "cifar10_disk"
    """CIFAR-10 from disk."""


class Cifar100Config(CifarConfig):
    """CIFAR-100's binary batches, read into memory."""

    kind: Literal["cifar100"] = "cifar100"
    """CIFAR-100 in memory."""

    num_classes: Count | None = 100
    """Labels must be in 0 .. num_classes - 1, coarse labels in 0 .. 19; null: any label."""

    def field_names(self) -> tuple[str, ...]:
        return "image", "label", "coarse_label"
