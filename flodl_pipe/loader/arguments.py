"""Keywords of :class:`flodl_pipe.Loader` -> its sections and parts, checked together."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from flodl_pipe.arrays import Array
from flodl_pipe.config.loader import COLLATIONS, LoaderConfig
from flodl_pipe.config.sampler_conflicts import refuse_sampler_conflicts
from flodl_pipe.config.sampling import INVERSE_FREQUENCY, SamplingConfig
from flodl_pipe.config.sections import check_section
from flodl_pipe.config.source_base import SourceSection
from flodl_pipe.errors import ConfigError
from flodl_pipe.loader.parts import Parts
from flodl_pipe.sampling.collate import make_collate
from flodl_pipe.transforms.chain import as_chain

__all__ = ["OMITTED", "Omitted", "grouped", "ragged_fields", "split_arguments"]

_SAMPLING = frozenset(SamplingConfig.model_fields) - {"sampler", "batch_sampler", "sampler_args"}


@final
class Omitted(enum.Enum):
    """The type of :data:`OMITTED`."""

    OMITTED = "omitted"

    def __repr__(self) -> str:
        return "OMITTED"


OMITTED = Omitted.OMITTED
"""Stands for an argument that was not given, where None means something."""


def split_arguments(
    loader: Mapping[str, Any],
    sampling: Mapping[str, Any],
    source: Mapping[str, Any],
    *,
    sampler: object,
    batch_sampler: object,
    transforms: object,
    num_epochs: int | None = None,
    shared: Sequence[object] = (),
) -> tuple[LoaderConfig, SamplingConfig, Parts]:
    """Check keywords and return what they say.

    Args:
        loader: Keywords of the section ``loader``; ``collate`` may be a function, ``batch_size`` omitted.
        sampling: Keywords of the section ``sampling``; ``weights`` and ``lengths`` may be arrays, ``shuffle`` and
            ``drop_last`` None where they were not given.
        source: Keywords that a recipe has in the section ``source``: ``on_error``, ``max_skipped``.
        sampler: The user's sampler, or None.
        batch_sampler: The user's batch sampler, or None.
        transforms: What the user gave as transforms.
        num_epochs: Epochs of the run, where they are known.
        shared: Objects that a sampler may hold, and that are not copied with it: the data set.

    Raises:
        ConfigError: naming every key that is wrong, or excludes another.
        LoaderError: if something is no transform.
    """
    size = loader["batch_size"]
    if size is None and batch_sampler is not None:
        size = OMITTED  # torch's way to say that the batch sampler decides
    refuse_sampler_conflicts(
        sampler=sampler,
        batch_sampler=batch_sampler,
        shuffle=sampling["shuffle"],
        order=sampling["order"],
        augment=sampling["augment"],
        drop_last=sampling["drop_last"],
        batch_size=None if size is OMITTED else size,
        global_batch_size=loader["global_batch_size"],
    )
    if (sampler is not None or batch_sampler is not None) and sampling["shuffle"]:
        raise ConfigError.at(
            "sampling.shuffle", "true together with a sampler, which decides the order; leave out one of the two"
        )
    if size is None and loader["global_batch_size"] is not None:
        raise ConfigError.at(
            "loader.global_batch_size",
            f"{loader['global_batch_size']!r} together with loader.batch_size=null, which delivers samples one by one; "
            "set batch_size, or leave global_batch_size out",
        )
    if size is OMITTED and batch_sampler is None and loader["global_batch_size"] is not None:
        size = loader["global_batch_size"]  # which decides
    if size is OMITTED and batch_sampler is None:
        raise ConfigError.at(
            "loader.batch_size", "must be given: rows of a batch, or None to deliver samples one by one"
        )
    if isinstance(loader["device"], torch.device):
        loader = {**loader, "device": str(loader["device"])}
    collate, weights, lengths = loader["collate"], sampling["weights"], sampling["lengths"]
    _check_arrays(weights, lengths, sampling["order"])
    config = check_section(
        LoaderConfig,
        "loader",
        **{
            **loader,
            "batch_size": None if size is OMITTED else size,
            "collate": collate if isinstance(collate, str) else COLLATIONS[0],
        },
    )
    if isinstance(collate, str) and collate not in COLLATIONS:
        raise ConfigError.at("loader.collate", f"{collate!r} is a path; in Python give the function itself")
    given = {
        "shuffle": True if sampling["shuffle"] is None else sampling["shuffle"],
        "drop_last": True if sampling["drop_last"] is None else sampling["drop_last"],
        # An array stands for itself, in the parts; the section only has to know that there are weights.
        "weights": INVERSE_FREQUENCY if _is_array(weights) else weights,
        "lengths": None if _is_array(lengths) else lengths,
    }
    section = check_section(SamplingConfig, "sampling", **{**sampling, **given})
    faults = check_section(SourceSection, "source", **source)
    parts = Parts(
        weights=_array(weights, "sampling.weights") if _is_array(weights) else None,
        lengths=_array(lengths, "sampling.lengths") if _is_array(lengths) else None,
        sampler=sampler,
        batch_sampler=batch_sampler,
        shared=tuple(shared),
        chain=as_chain(transforms),
        collate=make_collate(
            collate,
            pad_id=config.pad_id,
            pad_multiple=config.pad_multiple,
            pad_length=config.pad_length,
            labels_from=config.labels_from,
        ),
        passes_through=size is None,
        max_skipped=faults.max_skipped if faults.on_error == "skip" else None,
        num_epochs=num_epochs,
    )
    if parts.passes_through and collate != COLLATIONS[0]:
        raise ConfigError.at(
            "loader.collate", "makes batches, and loader.batch_size=null delivers samples one by one; leave it at stack"
        )
    return config, section, parts


def _check_arrays(weights: object, lengths: object, order: str) -> None:
    """Refuse arrays whose order was not asked for, and paths, which recipes name."""
    for key, value, needs in (("weights", weights, "weighted"), ("lengths", lengths, "bucketed")):
        if value is None:
            continue
        if isinstance(value, str) and value != INVERSE_FREQUENCY:
            raise ConfigError.at(
                f"sampling.{key}", f"{value!r} is a path, as a recipe has it; in Python give the array itself"
            )
        if order != needs:
            given = "an array was" if _is_array(value) else f"{value!r} was"
            raise ConfigError.at(
                f"sampling.{key}", f"{given} given, which means nothing with order={order}; set order={needs!r}"
            )


def grouped(keywords: Mapping[str, Any], shared: Sequence[object] = ()) -> dict[str, Any]:
    """Return keywords of a loader as :func:`split_arguments` takes them."""
    sampling = {name: keywords[name] for name in SamplingConfig.model_fields if name in _SAMPLING}
    rest = {name: keywords[name] for name in ("sampler", "batch_sampler", "transforms", "num_epochs")}
    loader = {name: keywords[name] for name in LoaderConfig.model_fields}
    source = {name: keywords[name] for name in ("on_error", "max_skipped")}
    return {"loader": loader, "sampling": sampling, "source": source, **rest, "shared": shared}


def _is_array(value: object) -> bool:
    return value is not None and not isinstance(value, str)


def _array(value: Any, key: str) -> Array:
    try:
        array: Array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ConfigError.at(key, f"must be an array of numbers, got {type(value).__qualname__}: {error}") from None
    return array


def ragged_fields(collate: object, batch_size: object, fields: bool | Sequence[str] | None) -> bool | Sequence[str]:
    """Return which fields of a user's dataset may be ragged: those named, or those that look so unless stacked."""
    if fields is None:
        return collate != "stack" or batch_size is None
    return fields if isinstance(fields, bool | str) else list(fields)
