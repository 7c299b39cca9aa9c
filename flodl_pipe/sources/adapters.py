"""What a user has -> a source: torch datasets, objects with ``get`` or ``get_batch``, and sources of one's own.

What counts is what an object can do, not what it derives from. In this order: a :class:`~.protocol.Source` is taken as
it is; ``__getitem__`` is read sample by sample, or through ``__getitems__`` where the same class has it; then ``get``;
then ``get_batch``. All but the first need ``len()``.
"""

from collections.abc import Mapping, Sequence, Sized

import torch.utils.data

from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.sources.impure import as_impure, generators_kept
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.user_access import access_to, says_thread_safe, type_name
from flodl_pipe.sources.user_ragged import RaggedUserSource
from flodl_pipe.sources.user_readers import BatchDataset, BatchReader, RaggedReader, SampleReader, UserReader
from flodl_pipe.sources.user_source import UserSource

__all__ = ["OPAQUE", "adapt"]

OPAQUE = "an opaque batch dataset is read batch by batch"
"""Why no memory tier keeps samples of a batch dataset."""

_TAKEN = (
    "what is taken: a dataset with __len__ and __getitem__ (or get), a batch dataset with __len__ and "
    "get_batch(indices), or a source (see flodl_pipe.Source)"
)
_TABLES = ("pandas", "polars", "pyarrow")
_MEMBERS = ("spec", "delivered", "thread_safe", "__len__", "read_into", "deliver", "fingerprint")


def adapt(
    thing: object, *, thread_safe: bool | None = None, ragged: bool | Sequence[str] | None = None, pure: bool = True
) -> Source:
    """Return a source that reads what a user has.

    A sample is a tensor, an array or a number, or a tuple, list, dict, NamedTuple or dataclass of them. The fields are
    learned from sample 0, which is read here, and every later sample is held to them.

    Args:
        thing: A source, or an object with ``len()`` and one of ``__getitem__``, ``get`` and ``get_batch``.
        thread_safe: Whether several threads may read a dataset at once; None: what an attribute ``thread_safe`` of it
            says, and that arrays, tensors, lists and Hugging Face datasets are. A source says that itself.
        ragged: Whether fields may be ragged: their rows differ in the length of their first axis. True tries up to
            eight samples besides sample 0 to see which; names are of fields that are ragged although those samples are
            of one length; False and None try none, and every field is fixed. A source says that itself.
        pure: Whether a sample is the same every time it is read. If not, it is a function of its pick, see
            :mod:`~.impure`. Sample 0 is read here without touching the process's generators.

    Raises:
        LoaderError: if it is nothing that can be read, or a ragged name is that of no field that can be.
        SourceError: if the dataset is empty, or its first sample is none.
        Exception: what the dataset raises for sample 0, itself.
    """
    if not pure:
        with generators_kept():
            return as_impure(adapt(thing, thread_safe=bool(thread_safe), ragged=ragged))
    names = None if ragged is None or ragged is False else () if ragged is True else tuple(_names(ragged))
    if isinstance(thing, type):
        name = thing.__qualname__
        raise LoaderError(f"the class {name} was given, not an object of it; give {name}(...)")
    if isinstance(thing, Source):
        if thread_safe and not thing.thread_safe:
            raise LoaderError(
                f"{type_name(thing)} is a source and says thread_safe = False; a source says that itself: set it there"
            )
        if names and not thing.spec.is_ragged:
            raise LoaderError(
                f"ragged={list(names)}, but {type_name(thing)} is a source, which says itself which fields are ragged, "
                "and it says none; leave it"
            )
        return thing
    _refuse(thing)
    access = access_to(thing)
    thread_safe = says_thread_safe(thing) if thread_safe is None else thread_safe
    reader: UserReader
    if access is not None and isinstance(thing, Sized):
        num_samples = _num_samples(thing)
        reader = SampleReader(thing, num_samples, access, ragged=names)
        thread_safe = access.thread_safe if thread_safe is None else thread_safe
    elif isinstance(thing, BatchDataset):
        if names:
            raise LoaderError(
                f"ragged={list(names)}, but {type_name(thing)} is a batch dataset, whose get_batch(indices) returns "
                "arrays of equal rows; give a dataset with __getitem__ for rows of different lengths"
            )
        num_samples = _num_samples(thing)
        reader = BatchReader(thing, num_samples)
    else:
        raise LoaderError(_why_not(thing))
    if reader.layout.spec.is_ragged and isinstance(reader, RaggedReader):
        return RaggedUserSource(reader, num_samples, thread_safe=bool(thread_safe))
    tiers_off = OPAQUE if isinstance(reader, BatchReader) else None
    source = UserSource(reader, num_samples, thread_safe=bool(thread_safe), tiers_off=tiers_off)
    source.is_unsaid = thread_safe is None
    return source


def _names(ragged: Sequence[str] | bool) -> Sequence[str]:
    if isinstance(ragged, bool | str) or not all(isinstance(name, str) for name in ragged):
        raise LoaderError(f"ragged must be True, False or a list of field names, got {ragged!r}")
    return ragged


def _refuse(thing: object) -> None:
    """Refuse what has the methods of a dataset and is none."""
    name = type_name(thing)
    if isinstance(thing, torch.utils.data.DataLoader):
        raise LoaderError(f"{name} makes batches itself; give the dataset it reads, its .dataset")
    if isinstance(thing, torch.utils.data.IterableDataset):
        raise LoaderError(_stream(name))
    if isinstance(thing, Mapping):
        names = ", ".join(repr(key) for key in list(thing)[:5])
        raise LoaderError(
            f"{name} is a mapping ({names}), not a dataset: of several datasets give one, thing[KEY]; of columns make "
            "one, for example torch.utils.data.TensorDataset(*columns.values())"
        )
    if name.partition(".")[0] in _TABLES:
        raise LoaderError(
            f"{name} is a table, which gives columns, not samples; give its numeric columns as arrays, for example "
            "torch.utils.data.TensorDataset(torch.from_numpy(table[NAME].to_numpy()), ...)"
        )
    if isinstance(thing, str | bytes | bytearray):
        raise LoaderError(f"{thing!r:.60} is {name}; open files with flodl_pipe.load(RECIPE), or give a dataset")


def _num_samples(thing: Sized) -> int:
    name = type_name(thing)
    try:
        count = len(thing)
    except (TypeError, ValueError) as error:
        raise SourceError(f"len({name}) fails: {error}; it must return the number of samples, at least 1") from error
    if not count:
        raise SourceError(f"{name} is empty, len() is 0; a loader needs at least one sample")
    return count


def _stream(name: str) -> str:
    return (
        f"{name} can only be iterated: it has no length and no sample by number, so it is a stream, which a loader of "
        "samples cannot shuffle or resume; give it __len__ and __getitem__, or collect a small one with list()"
    )


def _why_not(thing: object) -> str:
    name = type_name(thing)
    has = [member for member in _MEMBERS if getattr(thing, member, None) is not None]
    if "read_into" in has:
        missing = ", ".join(member for member in _MEMBERS if member not in has)
        return f"{name} has read_into but is no source: it lacks {missing}; {_TAKEN}"
    indexed = [word for word in ("__getitem__", "get", "get_batch") if getattr(thing, word, None) is not None]
    if indexed and "__len__" not in has:
        return f"{name} has {indexed[0]} but no __len__, which says how many samples there are; {_TAKEN}"
    if not indexed and getattr(thing, "__iter__", None) is not None:
        return _stream(name)
    return f"cannot read samples from {name}; {_TAKEN}"
