"""What a user's sampler or batch sampler excludes: whoever decides the order, or its batches, decides it alone.

One rule for the config and for ``Loader``'s arguments, as a function of what was given.
"""

from flodl_pipe.config.base import shown
from flodl_pipe.errors import ConfigError, Problem

__all__ = ["refuse_sampler_conflicts", "sampler_conflicts"]


def sampler_conflicts(
    *,
    sampler: object = None,
    batch_sampler: object = None,
    shuffle: bool | None = None,
    order: str | None = None,
    augment: int | None = None,
    drop_last: object = None,
    batch_size: int | None = None,
    global_batch_size: int | None = None,
) -> tuple[Problem, ...]:
    """Return what cannot be set together; None stands for what was not given.

    Args:
        sampler: The sampler, or the import path of what makes it.
        batch_sampler: The batch sampler, likewise.
        shuffle: ``sampling.shuffle``; true is no conflict, for it is what stands there by default.
        order: ``sampling.order``; ``uniform`` is no conflict, likewise.
        augment: ``sampling.augment``; 1 is no conflict, likewise.
        drop_last: ``sampling.drop_last``, if it was given.
        batch_size: ``loader.batch_size``, if it was given.
        global_batch_size: ``loader.global_batch_size``, if it was given.
    """
    if sampler is None and batch_sampler is None:
        return ()
    key, what = (
        ("sampling.sampler", "sampler") if batch_sampler is None else ("sampling.batch_sampler", "batch sampler")
    )
    problems: list[Problem] = []

    def refuse(other: str, value: object, why: str) -> None:
        problems.append(Problem(other, f"{shown(value)} excludes {key}: {why}; leave out one of the two"))

    if shuffle is False:
        refuse("sampling.shuffle", shuffle, f"the {what} decides the order, and false asks for storage order")
    if order is not None and order != "uniform":
        refuse("sampling.order", order, f"the {what} decides the order")
    if augment is not None and augment > 1:
        refuse(
            "sampling.augment",
            augment,
            f"augment brings every sample {augment} times an epoch, and the {what} decides how often a sample comes; "
            "yield each index as often as it shall come",
        )
    if batch_sampler is not None:
        if sampler is not None:
            problems.append(
                Problem(
                    "sampling.sampler",
                    "excludes sampling.batch_sampler: the batch sampler decides the order and the batches; wrap the "
                    "sampler in the batch sampler, or leave out one of the two",
                )
            )
        decides = "the batch sampler decides which rows make up a step, over all ranks"
        if batch_size is not None:
            refuse("loader.batch_size", batch_size, decides)
        if global_batch_size is not None:
            refuse("loader.global_batch_size", global_batch_size, decides)
        if drop_last is not None:
            refuse(
                "sampling.drop_last",
                drop_last,
                "the batch sampler decides what becomes of a short last batch, torch's by its own drop_last",
            )
    return tuple(problems)


def refuse_sampler_conflicts(
    *,
    sampler: object = None,
    batch_sampler: object = None,
    shuffle: bool | None = None,
    order: str | None = None,
    augment: int | None = None,
    drop_last: object = None,
    batch_size: int | None = None,
    global_batch_size: int | None = None,
) -> None:
    """Refuse what cannot be set together; arguments as :func:`sampler_conflicts`.

    Raises:
        ConfigError: with one problem for each key that conflicts.
    """
    problems = sampler_conflicts(
        sampler=sampler,
        batch_sampler=batch_sampler,
        shuffle=shuffle,
        order=order,
        augment=augment,
        drop_last=drop_last,
        batch_size=batch_size,
        global_batch_size=global_batch_size,
    )
    if problems:
        raise ConfigError(problems)
