"""Section ``source`` of the kinds with pictures -> :class:`flodl_pipe.sources.labelled_records.LabelledRecords`."""

from collections.abc import Sequence

from flodl_pipe.config.source_images import Cifar10DiskConfig, Cifar100Config, CifarConfig, IdxConfig
from flodl_pipe.sources.cifar import CIFAR10, CIFAR100, cifar_files, open_cifar
from flodl_pipe.sources.data_folder import DataFolder, stands_alone
from flodl_pipe.sources.default_path import default_path
from flodl_pipe.sources.idx import open_idx, published_idx
from flodl_pipe.sources.labelled_records import LabelledRecords
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.sample_images import sample_images, sample_images_fact

__all__ = ["build_cifar", "build_idx"]


def build_idx(config: IdxConfig, data_dir: str) -> LabelledRecords:
    """Read the IDX files that a config names, the user's default folder, or the sample.

    Args:
        config: The section.
        data_dir: Folder of the user's data sets.

    Raises:
        SourceError: if data is missing, unreadable or damaged.
    """
    if config.files is None:
        folder, notes = _folder(config, config.kind, data_dir)
        images, labels = published_idx(folder, config.split)
    else:
        (images, labels), notes = _named(config, config.kind, data_dir, [config.files.images, config.files.labels])
    return open_idx(images, labels, kind=config.kind, num_classes=config.num_classes, notes=notes)


def build_cifar(config: CifarConfig, data_dir: str) -> LabelledRecords:
    """Open the binary batches that a config names, the user's default folder, or the sample.

    Args:
        config: The section.
        data_dir: Folder of the user's data sets.

    Raises:
        SourceError: if data is missing, unreadable or damaged.
    """
    layout = CIFAR100 if isinstance(config, Cifar100Config) else CIFAR10
    if config.files is None:
        folder, notes = _folder(config, layout.kind, data_dir)
        files = cifar_files(layout, folder, config.split)
    else:
        files, notes = _named(config, layout.kind, data_dir, config.files)
    in_memory = not isinstance(config, Cifar10DiskConfig)
    return open_cifar(layout, files, in_memory=in_memory, num_classes=config.num_classes, notes=notes)


def _folder(config: IdxConfig | CifarConfig, name: str, data_dir: str) -> tuple[DataFolder, tuple[Fact, ...]]:
    """Return where the published files lie, and what to tell about that."""
    split = Fact("split", config.split)
    if config.path is not None:
        return DataFolder(config.path), (split,)
    default = default_path(data_dir, name, config.if_missing)
    if default is not None:
        return DataFolder(default), (split,)
    return DataFolder(str(sample_images(name))), (sample_images_fact(name), split)


def _named(
    config: IdxConfig | CifarConfig, name: str, data_dir: str, files: Sequence[str]
) -> tuple[list[str], tuple[Fact, ...]]:
    """Return the addresses of files of the user's own. No sample stands in for them."""
    if all(stands_alone(file) for file in files):
        return list(files), ()
    folder = DataFolder(config.path or default_path(data_dir, name, "error") or data_dir)
    missing = [file for file in files if not stands_alone(file) and folder.lacks(file)]
    if missing:
        raise folder.missing(missing, "source.files names them")
    return [folder.join(file) for file in files], ()
