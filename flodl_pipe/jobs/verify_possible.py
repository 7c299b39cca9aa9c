"""Which settings of ``job=verify`` can be built for a config, and why the others cannot."""

from collections.abc import Callable, Sequence

from flodl_pipe.jobs.verify_combinations import Setting
from flodl_pipe.jobs.verify_ranks import refusal
from flodl_pipe.jobs.verify_ways import REFUSALS, Subject, idle_tier, in_short

__all__ = ["possible_settings"]


def possible_settings(
    subject: Subject, everything: Sequence[Setting]
) -> tuple[list[tuple[int, Setting]], dict[str, int]]:
    """Return the settings that can be built, each with its place in the matrix, and the number refused by reason.

    A way is tried by one rank, and a number of ranks on the plainest way: one loader is built for each of both, and not
    for each pair.

    Args:
        subject: The stream.
        everything: The whole matrix.
    """
    possible: list[tuple[int, Setting]] = []
    refused: dict[str, int] = {}
    answers: dict[Setting, str | None] = {}

    def answer(setting: Setting, find: Callable[[Setting], str | None]) -> str | None:
        if setting not in answers:
            answers[setting] = find(setting)
        return answers[setting]

    for number, setting in enumerate(everything):
        why = (
            answer(Setting(readers=0, ratios=setting.ratios), lambda plain: refusal(subject, plain))
            # A cache may need a reader to fill it.
            or answer(Setting(setting.way, min(setting.readers, 1)), lambda alone: _refusal_of_way(subject, alone))
            or subject.too_large(setting)
        )
        if why is None:
            possible.append((number, setting))
        else:
            refused[why] = refused.get(why, 0) + 1
    return possible, refused


def _refusal_of_way(subject: Subject, alone: Setting) -> str | None:
    try:
        return idle_tier(subject, alone) or refusal(subject, alone)
    except REFUSALS as error:
        return in_short(error)
