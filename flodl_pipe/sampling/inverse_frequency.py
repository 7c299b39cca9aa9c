"""Weights that give every class the same share of the draws, from the labels alone."""

import numpy as np
import numpy.typing as npt

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import ConfigError

__all__ = ["inverse_frequency"]


def inverse_frequency(labels: Array) -> npt.NDArray[np.float64]:
    """Return one weight per sample, ``1 / number of samples with its label``: the weights of a class add up to 1.

    Args:
        labels: Class of each sample, integers of at least 0, shape ``(N,)`` with ``N >= 1``.

    Returns:
        float64, shape ``(N,)``.

    Raises:
        ConfigError: if they are no such labels, or none.

    >>> inverse_frequency(np.array([0, 0, 1, 0, 0])).tolist()
    [0.25, 0.25, 1.0, 0.25, 0.25]
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise _error(
            f"a one-dimensional array of integers, got {labels.dtype} of shape {labels.shape}; give one class number "
            "per sample, or weights of your own"
        )
    if not len(labels):
        raise _error("at least one label, got none; give one class number per sample")
    if labels.min() < 0:
        place = int(np.argmax(labels < 0))
        raise _error(
            f"labels of at least 0, got {labels[place]} at sample {place}; give such samples a class of their own, "
            "or give weights with 0 for samples that are not to be drawn"
        )
    counts, classes = _counts(labels)
    return (1.0 / counts)[classes]


def _counts(labels: Array) -> tuple[IndexArray, IndexArray]:
    """Return the number of samples of each class, and the place of each sample's class among them."""
    # A table up to the largest label is quicker than sorting, but labels may be anything, hashes for example.
    if int(labels.max()) < max(1 << 20, len(labels)):
        classes = labels.astype(np.int64)
        counts = np.bincount(classes)
        return np.maximum(counts, 1), classes
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return counts, classes


def _error(rule: str) -> ConfigError:
    return ConfigError.at("sampling.weights", f"inverse frequencies need {rule}")
