"""The labels of all samples: one field, read once from front to back."""

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import ConfigError
from flodl_pipe.loader.stores import CHUNK_BYTES
from flodl_pipe.sources.protocol import Source

__all__ = ["labels_of"]


def labels_of(source: Source, field: str) -> IndexArray:
    """Return the label of each sample, int64, shape ``(N,)``.

    Reads the whole source: stored rows have no part that could be read alone.

    Args:
        source: The samples.
        field: Name of the delivered field.

    Raises:
        ConfigError: if there is no such field, or it is not one whole number a sample.
        SourceError: as :meth:`flodl_pipe.sources.protocol.Source.read_into`.
    """
    found = next((one for one in source.delivered if one.name == field), None)
    if found is None:
        raise ConfigError.at(
            "sampling.label_field",
            f"names no field of the source: it has {', '.join(source.delivered.names)}, got {field!r}",
        )
    if found.shape or found.is_ragged or np.dtype(found.dtype).kind not in "iub":
        raise ConfigError.at(
            "sampling.label_field", f"must name a field with one whole number for each sample, got {found}"
        )
    if source.spec.is_ragged:
        raise ConfigError.at(
            "sampling.weights",
            "inverse_frequency reads labels from samples of one size, and these are ragged; give the weights yourself",
        )
    num_samples = len(source)
    rows = max(1, CHUNK_BYTES // max(1, source.spec.row_bytes + source.delivered.row_bytes))
    labels: IndexArray = np.empty(num_samples, dtype=np.int64)
    stored, out = source.spec.empty(min(rows, num_samples)), source.delivered.empty(min(rows, num_samples))
    for first in range(0, num_samples, rows):
        count = min(rows, num_samples - first)
        indices = np.arange(first, first + count, dtype=np.int64)
        here = {name: array[:count] for name, array in stored.items()}
        source.read_into(indices, indices - first, here)
        source.deliver(here, {name: array[:count] for name, array in out.items()})
        labels[first : first + count] = out[field][:count]
    return labels
