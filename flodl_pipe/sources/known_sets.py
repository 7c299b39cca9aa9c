"""The data sets that can be downloaded: their files, with the sizes and digests that others have published.

A digest pins a file wherever it comes from, so a mirror need not be trusted. Every figure names the public place it
was taken from. What nobody publishes is not here: the digests of the files inside the CIFAR archives follow from the
archive's own, and are noted when it is unpacked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

__all__ = ["KNOWN_SETS", "Content", "KnownFile", "KnownSet", "Member", "known_set_of"]


@final
@dataclass(frozen=True)
class Content:
    """What a gzip file unpacks to.

    Attributes:
        num_bytes: Its size.
        sha256: Its digest, 64 hexadecimal digits.
    """

    num_bytes: int
    sha256: str


@final
@dataclass(frozen=True)
class KnownFile:
    """A file to download.

    Attributes:
        name: Its name, at the addresses and in the data folder.
        num_bytes: Its size.
        sha256: Its digest, 64 hexadecimal digits.
        published: Where size and digest were published.
        content: For a gzip file, what it unpacks to, where that is known: the same content packed once more, or left
            unpacked under the name without ``.gz``, is then as good.
    """

    name: str
    num_bytes: int
    sha256: str
    published: str
    content: Content | None = None


@final
@dataclass(frozen=True)
class Member:
    """A file wanted from an archive.

    Attributes:
        path: Its path inside.
        num_bytes: Its size; None for a small text of unpublished size.
    """

    path: str
    num_bytes: int | None

    @property
    def name(self) -> str:
        """Its name in the data folder."""
        return self.path.rpartition("/")[2]


@final
@dataclass(frozen=True)
class KnownSet:
    """A data set.

    Attributes:
        name: Its name, and that of its folder.
        addresses: Where its files lie, tried in this order; each ends with ``/``.
        files: The files to download.
        members: What is wanted of the first file, if that is an archive; empty: the files are wanted themselves.
    """

    name: str
    addresses: tuple[str, ...]
    files: tuple[KnownFile, ...]
    members: tuple[Member, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return the names of the files that lie in the data folder in the end."""
        return tuple(part.name for part in self.members or self.files)


# Digest tables of TensorFlow Datasets, in its public repository.
_TFDS = "github.com/tensorflow/datasets, tensorflow_datasets/url_checksums"
# The records of CIFAR's binary version, as www.cs.toronto.edu/~kriz/cifar.html describes them: labels, then 3x32x32.
_CIFAR10_RECORD = 1 + 3072
_CIFAR100_RECORD = 2 + 3072


# The digests of the unpacked files are not in the table of TFDS. Many projects pin the same ones; those of the test
# set are checked by the tests against the files themselves, and the sizes follow from the format: a header of 16 or
# 8 bytes, then 784 bytes or 1 byte a sample.
_MNIST = KnownSet(
    "mnist",
    # The first as in TFDS, the second as in torchvision/datasets/mnist.py.
    ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    (
        KnownFile(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            f"{_TFDS}/mnist.txt",
            Content(47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ),
        KnownFile(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            f"{_TFDS}/mnist.txt",
            Content(60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ),
        KnownFile(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            f"{_TFDS}/mnist.txt",
            Content(7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ),
        KnownFile(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            f"{_TFDS}/mnist.txt",
            Content(10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
    ),
)

_FASHION_MNIST = KnownSet(
    "fashion_mnist",
    # The authors' repository, then their bucket, which TFDS and torchvision/datasets/mnist.py use.
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    (
        KnownFile(
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            f"{_TFDS}/fashion_mnist.txt",
        ),
        KnownFile(
            "train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            f"{_TFDS}/fashion_mnist.txt",
        ),
        KnownFile(
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            f"{_TFDS}/fashion_mnist.txt",
        ),
        KnownFile(
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            f"{_TFDS}/fashion_mnist.txt",
        ),
    ),
)

_CIFAR10 = KnownSet(
    "cifar10",
    # The authors' page, then the copy that Datasets/CIFAR10 of github.com/tensorflow/swift-models uses.
    ("https://www.cs.toronto.edu/~kriz/", "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/"),
    (
        KnownFile(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            f"{_TFDS}/cifar10.txt",
        ),
    ),
    (
        *(Member(f"cifar-10-batches-bin/data_batch_{part}.bin", 10_000 * _CIFAR10_RECORD) for part in range(1, 6)),
        Member("cifar-10-batches-bin/test_batch.bin", 10_000 * _CIFAR10_RECORD),
        Member("cifar-10-batches-bin/batches.meta.txt", None),
    ),
)

_CIFAR100 = KnownSet(
    "cifar100",
    ("https://www.cs.toronto.edu/~kriz/",),
    (
        KnownFile(
            "cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            f"{_TFDS}/cifar100.txt",
        ),
    ),
    (
        Member("cifar-100-binary/train.bin", 50_000 * _CIFAR100_RECORD),
        Member("cifar-100-binary/test.bin", 10_000 * _CIFAR100_RECORD),
        Member("cifar-100-binary/fine_label_names.txt", None),
        Member("cifar-100-binary/coarse_label_names.txt", None),
    ),
)

_SHAKESPEARE = KnownSet(
    "shakespeare",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",),
    (
        KnownFile(
            "input.txt",
            1_115_394,
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            f"{_TFDS}/tiny_shakespeare.txt",
        ),
    ),
)

KNOWN_SETS: Mapping[str, KnownSet] = {
    known.name: known for known in (_MNIST, _FASHION_MNIST, _CIFAR10, _CIFAR100, _SHAKESPEARE)
}
"""The known sets by name."""


def known_set_of(kind: str) -> KnownSet | None:
    """Return the set that a kind of source reads by default; None if it has none.

    Args:
        kind: Kind of the source. One that reads from the disk reads the same files as its sibling in memory.

    >>> known_set_of("cifar10_disk").name, known_set_of("token_shards")
    ('cifar10', None)
    """
    return KNOWN_SETS.get(kind.removesuffix("_disk"))
