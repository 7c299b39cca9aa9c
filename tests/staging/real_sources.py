"""Bundled sources over small files, of every kind that a tier treats in its own way."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from flodl_pipe.sources.mixture import Mixture
from flodl_pipe.sources.ordering import Weights
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.subset import Subset
from flodl_pipe.sources.tokens import TokenShards

KINDS = (
    "records",
    "windows side by side",
    "windows that overlap",
    "every start",
    "tail kept",
    "range of records",
    "some records",
    "some windows that overlap",
    "mixture of windows",
    "mixture of records",
)


def records(folder: Path, *, name: str = "r", seed: int = 0, counts: tuple[int, ...] = (60, 1, 39)) -> Records:
    rng = np.random.default_rng(seed)
    for number, count in enumerate(counts):
        rng.integers(0, 256, (count, 13), dtype=np.uint8).tofile(folder / f"{name}{number}.bin")
    parts = {"label": RecordPart(0, "uint8", ()), "pixels": RecordPart(1, "uint8", (3, 4))}
    return Records.open(str(folder / f"{name}*.bin"), record_bytes=13, parts=parts)


def tokens(folder: Path, *, name: str = "t", seed: int = 0, bad: int | None = None, **options: Any) -> TokenShards:
    rng = np.random.default_rng(seed)
    for number, count in enumerate((500, 9, 333)):
        values = rng.integers(0, 1000, count, dtype=np.uint16)
        if bad is not None and number == 0:
            values[bad] = 1_000
        np.save(folder / f"{name}{number}.npy", values)
    return TokenShards.open(str(folder / f"{name}*.npy"), **{"seq_len": 8, **options})


def mixture(first: Any, second: Any) -> Mixture:
    weights = Weights(0, (Fraction(1, 4), Fraction(3, 4)))
    return Mixture({"first": first, "second": second}, [weights], block=8)


def make(kind: str, folder: Path) -> Any:
    match kind:
        case "records":
            return records(folder)
        case "windows side by side":
            return tokens(folder, seq_len=16)
        case "windows that overlap":
            return tokens(folder, stride=2)
        case "every start":
            return tokens(folder, starts="random")
        case "tail kept":
            return tokens(folder, tail="keep")
        case "range of records":
            return Subset(records(folder), range(20, 80))
        case "some records":
            return Subset(records(folder), np.arange(3, 99, 3))
        case "some windows that overlap":
            return Subset(tokens(folder, stride=2), np.flatnonzero(np.arange(300) % 5 != 2))
        case "mixture of windows":
            return mixture(tokens(folder, stride=3), tokens(folder, name="u", seed=1, stride=2))
        case "mixture of records":
            return mixture(records(folder), records(folder, name="s", seed=1, counts=(33, 20)))
    raise AssertionError(kind)
