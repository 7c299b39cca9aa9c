"""Which samples a subset has: ranges, files of indices, shares by a keyed shuffle.

Sets are kept in storage order, as a ``range`` where they are one, else as ascending int64. A share is the front of a
shuffle of all samples, and the parts of a split are consecutive pieces of one, cut by largest remainder: disjoint and
covering. What is chosen depends on the number of samples, the seed and the shares in their order, and on no names; with
another number of samples it is another choice altogether.

Shape letter: ``M`` samples of a set.
"""

import io
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.config.proportions import exact, quotas
from flodl_pipe.config.source_base import SubsetConfig
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.keyed.permute import permutation
from flodl_pipe.storage.address import local_path
from flodl_pipe.units import format_count

__all__ = ["IndexSet", "compact", "read_indices", "select"]

IndexSet = range | IndexArray
"""Indices of samples, ascending and distinct: a range with step 1, or int64 of shape ``(M,)``."""

_FRACTION, _SPLIT = 0xF4AC, 0x5D17
_NPY_MAGIC = b"\x93NUMPY"
_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}")


def select(num_samples: int, config: SubsetConfig) -> tuple[IndexSet, str]:
    """Return the samples that the rules of a config choose.

    Args:
        num_samples: Samples of the source.
        config: The rules; they apply in the order of their keys, each to what the one before has left.

    Returns:
        The set, and the rules in words.

    Raises:
        ConfigError: if a rule reaches beyond the samples or leaves none.
        SourceError: if a file of indices is missing, damaged, or does not fit the source.
    """
    chosen: IndexSet = range(num_samples)
    words: list[str] = []
    if config.range is not None:
        first, stop = config.range
        if stop > num_samples:
            raise ConfigError.at(
                "source.subset.range",
                f"[{first}, {stop}] reaches beyond the {format_count(num_samples)} samples of the source; the end may "
                f"be at most {num_samples}",
            )
        chosen = range(first, stop)
        words.append(f"range {format_count(first)} .. {format_count(stop)}")
    if config.indices is not None:
        chosen, note = read_indices(config.indices, num_samples)
        words.append(f"indices of {config.indices}{note}")
    if config.fraction is not None:
        share = exact(config.fraction)
        chosen = _fraction(chosen, share, config.seed)
        words.append(f"fraction {config.fraction}, seed {config.seed}")
    if config.split is not None:
        chosen = _part(chosen, config.split, config.take or "", config.seed)
        words.append(f"split {config.take}={config.split[config.take or '']}, seed {config.seed}")
    return chosen, "; ".join(words)


def compact(indices: IndexArray) -> IndexSet:
    """Return ascending distinct indices as a range where they are one."""
    if not len(indices):
        return range(0)
    first, last = int(indices[0]), int(indices[-1])
    return range(first, last + 1) if last - first + 1 == len(indices) else indices


def read_indices(path: str, num_samples: int) -> tuple[IndexSet, str]:
    """Read a file of sample indices: a one-dimensional integer ``.npy``, told by its first bytes, or text.

    Text holds one decimal index a line; blank lines are passed over. Indices need not ascend: they are sorted.

    Args:
        path: The file.
        num_samples: Samples of the source.

    Returns:
        The set, and a note in words where the file was not in order, else "".

    Raises:
        SourceError: if the file cannot be read, holds anything else, no index, one twice, or one that the source does
            not have; the message names the line or the place in the array.
    """
    name = local_path(path)
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise SourceError(
            f"source.subset.indices: {name} cannot be read ({error.strerror}); correct the path"
        ) from None
    is_array = content.startswith(_NPY_MAGIC)
    indices, places = _from_npy(name, content) if is_array else _from_text(name, content)
    if not len(indices):
        raise SourceError(
            f"{name}: holds 0 indices, so 0 of {format_count(num_samples)} samples would be left; give at least one"
        )
    word = "entry" if is_array else "line"
    outside = (indices < 0) | (indices >= num_samples)
    if outside.any():
        at = int(np.argmax(outside))
        raise SourceError(
            f"{name}: {word} {places[at]}: index {indices[at]} is not in 0 .. {num_samples - 1}; the source has "
            f"{format_count(num_samples)} samples, numbered from 0"
        )
    by_index = np.argsort(indices, kind="stable")
    ordered = indices[by_index]
    repeats = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(repeats):
        at = int(repeats[np.argmin(by_index[repeats + 1])])
        raise SourceError(
            f"{name}: {word} {places[by_index[at + 1]]}: index {ordered[at]} stands already at {word} "
            f"{places[by_index[at]]}; a subset has each sample once, remove one of them"
        )
    note = "" if (indices[1:] > indices[:-1]).all() else " (sorted: the file is not in order)"
    return compact(ordered), note


def _from_npy(name: str, content: bytes) -> tuple[IndexArray, range]:
    try:
        found: Array = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, MemoryError) as error:
        raise SourceError(
            f"{name}: not a readable .npy file of integers ({error}); write it with np.save(name, indices)"
        ) from error
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise SourceError(
            f"{name}: holds {found.dtype} of shape {found.shape}, and indices are integers in one dimension; write it "
            "with np.save(name, np.flatnonzero(chosen))"
        )
    if found.dtype.kind == "u" and (found > np.iinfo(np.int64).max).any():
        at = int(np.argmax(found > np.iinfo(np.int64).max))
        raise SourceError(f"{name}: entry {at}: index {found[at]} is not below 2**63; no source has as many samples")
    return found.astype(np.int64), range(len(found))


def _from_text(name: str, content: bytes) -> tuple[IndexArray, list[int]]:
    values: list[int] = []
    places: list[int] = []
    for line, text in enumerate(content.splitlines(), 1):
        word = text.strip()
        if not word:
            continue
        if not _INTEGER.fullmatch(word) or abs(int(word)) >= 1 << 63:
            shown: Any = word[:40].decode("utf-8", errors="backslashreplace")
            raise SourceError(f"{name}: line {line}: {shown!r} is not an index; write one decimal number a line")
        values.append(int(word))
        places.append(line)
    return np.array(values, dtype=np.int64), places


def _fraction(chosen: IndexSet, share: Fraction, seed: int) -> IndexSet:
    count, _ = quotas(len(chosen), [share, 1 - share])
    if not count:
        raise ConfigError.at(
            "source.subset.fraction",
            f"{float(share)} of {format_count(len(chosen))} samples is 0 samples; use at least "
            f"{float(Fraction(1, len(chosen))):.3g}",
        )
    return _shuffled(chosen, 0, count, _FRACTION, seed)


def _part(chosen: IndexSet, split: dict[str, float], take: str, seed: int) -> IndexSet:
    names = list(split)
    counts = quotas(len(chosen), [exact(share) for share in split.values()])
    number = names.index(take)
    if not counts[number]:
        raise ConfigError.at(
            f"source.subset.split.{take}",
            f"a share of {split[take]} of {format_count(len(chosen))} samples is 0 samples; give it a larger share",
        )
    begin = sum(counts[:number])
    return _shuffled(chosen, begin, begin + counts[number], _SPLIT, seed)


def _shuffled(chosen: IndexSet, begin: int, end: int, domain: int, seed: int) -> IndexSet:
    """Return what stands at places ``begin .. end - 1`` of a shuffle of a set, in storage order."""
    if end - begin == len(chosen):
        return chosen
    places = permutation(len(chosen), domain, seed).at(np.arange(begin, end, dtype=np.int64))
    places.sort()
    if isinstance(chosen, range):
        places += chosen.start
        return compact(places)
    return compact(chosen[places])
