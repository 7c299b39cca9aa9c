"""The errors a user can meet, as one tree.

::

    FlodlPipeError
    ├── ConfigError      a key, value or recipe is wrong (also a ValueError); carries one Problem per fault
    ├── SourceError      data is missing, damaged or changed; names file and offset
    │   └── ChangedError     a file is not the one that was opened
    ├── TransformError   a transform cannot work on the batch, or broke its contract
    ├── LoaderError      the loader was used in a way it cannot serve
    ├── StagingError     memory was refused or a tier failed
    │   └── DeviceMemoryError    the device has no memory left
    ├── ResumeError      a cursor does not fit this pipeline
    └── ClusterError     ranks disagree or the layout is impossible

Every message gives the value that was read, the rule it breaks and the remedy. Errors hold plain strings and
numbers only, so that they pickle between processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "OF_HOST",
    "ChangedError",
    "ClusterError",
    "ConfigError",
    "DeviceMemoryError",
    "FlodlPipeError",
    "LoaderError",
    "Problem",
    "ResumeError",
    "SourceError",
    "StagingError",
    "TransformError",
]

OF_HOST = {"of_host": True}
"""Goes with a logged warning that tells of a host's data, not of this process: of the ranks of a job one says it."""


class FlodlPipeError(Exception):
    """Root of every error that is about the user's data, config or machine, not about a bug of ours."""


@dataclass(frozen=True)
class Problem:
    """One fault of a configuration.

    Attributes:
        key: Dotted key path, for example ``source.seq_len``; empty when the fault has no key.
        message: Value, rule and remedy.
        where: Where the value was set, ``file:line`` or ``command line: ...``; None when it is a default.
    """

    key: str
    message: str
    where: str | None = None

    def __str__(self) -> str:
        head = f"  {self.key}: {self.message}" if self.key else f"  {self.message}"
        return f"{head}\n      set at {self.where}" if self.where else head


class ConfigError(FlodlPipeError, ValueError):
    """Every problem of one configuration, found together.

    Attributes:
        problems: At least one :class:`Problem`.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = "\n".join(map(str, self.problems))
        return f"{count} problem{'s' if count != 1 else ''} in the config\n{lines}"

    @classmethod
    def at(cls, key: str, message: str, where: str | None = None) -> "ConfigError":
        """Build the error for a single problem."""
        return cls([Problem(key, message, where)])


class SourceError(FlodlPipeError):
    """Data is missing, damaged or not what the config says it is."""


class ChangedError(SourceError):
    """A file changed after it was opened: its size, identity or modification time differs."""


class TransformError(FlodlPipeError):
    """A transform or a collate function cannot work on these fields, or gave back what is no batch of these rows."""


class LoaderError(FlodlPipeError):
    """The loader was asked for something it cannot do in its present state."""


class StagingError(FlodlPipeError):
    """Memory was refused by the budget, or a staging tier failed."""


class DeviceMemoryError(StagingError):
    """A device has no memory left for what was asked of it."""


class ResumeError(FlodlPipeError):
    """A saved cursor does not fit this source, order or transform."""


class ClusterError(FlodlPipeError):
    """Ranks disagree, or the layout cannot be served."""
