"""The command line, brought into the one form that every supported Hydra reads the same way.

Flags may stand between overrides (Hydra 1.3 refuses that), ``recipe=NAME`` means ``+recipe=NAME``, and what cannot be
honoured safely is refused. Ranks of one torchrun job that are not rank 0 get no run folder and no log file.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra._internal.utils import get_args_parser

from flodl_pipe.errors import ConfigError

__all__ = ["Arguments", "read_arguments", "recipe_word", "torchrun_rank", "without_folder"]

_SWITCHES = ("help", "hydra_help", "resolve", "run", "multirun", "shell_completion")
_VALUES = ("cfg", "package", "config_name", "config_dir", "info")
# What leaves no folder and no log file behind.
_QUIET = {"hydra.run.dir": ".", "hydra.output_subdir": "null"}
# Flags without which the overrides would mean something else.
_KEPT_FLAGS = ("--config-dir=", "--config-name=")

NO_SWEEP = (
    "--multirun under torchrun would start one sweep per rank; run the sweep outside and torchrun inside each job, "
    "or leave out -m"
)


@dataclass(frozen=True)
class Arguments:
    """A command line, understood.

    Attributes:
        flags: Hydra's own flags, each with its value behind ``=``.
        words: Overrides, in the order given.
        config_dir: ``--config-dir``, absolute.
        config_name: Primary config.
        runs: Whether one job is to be run here: no sweep, no ``--help``, ``--cfg``, ``--info`` or completion.
    """

    flags: tuple[str, ...]
    words: tuple[str, ...]
    config_dir: Path | None
    config_name: str
    runs: bool

    @property
    def kept_flags(self) -> tuple[str, ...]:
        """The flags that another process needs, before the overrides, to compose the same config."""
        return tuple(flag for flag in self.flags if flag.startswith(_KEPT_FLAGS))


def torchrun_rank() -> int | None:
    """Return this process's rank among several, as torchrun's environment gives it; None in a plain process."""
    world, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    return int(rank) if world.isdecimal() and int(world) > 1 and rank.isdecimal() else None


def recipe_word(word: str) -> str:
    """Return ``+recipe=NAME`` for ``recipe=NAME``, other overrides unchanged.

    A ``recipe: null`` in the defaults list would make the plain form work but break ``+recipe=NAME``.

    >>> recipe_word("recipe=olmo_shards"), recipe_word("recipe/exp=a"), recipe_word("loader.batch_size=1")
    ('+recipe=olmo_shards', '+recipe/exp=a', 'loader.batch_size=1')
    """
    return f"+{word}" if re.match(r"recipe(/[\w/-]+)?=", word) else word


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def without_folder(arguments: Arguments, logging: str) -> Arguments:
    """Replace or add the overrides that leave nothing behind but output.

    Args:
        arguments: A command line that runs one job.
        logging: Hydra's logging of the job: ``stdout``, or ``none``.
    """
    extra = {**_QUIET, "hydra/job_logging": logging}
    words = [word for word in arguments.words if _key(word) not in extra]
    return replace(arguments, words=(*words, *(f"{key}={value}" for key, value in extra.items())))


def read_arguments(argv: Sequence[str]) -> Arguments:
    """Return what a command line asks for.

    Raises:
        ConfigError: for an unknown flag, a flag that is not supported, or a sweep under torchrun.
        SystemExit: status 0 after ``--version``, which prints our version and Hydra's.
    """
    complaint, version = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(version):
            args = get_args_parser().parse_intermixed_args([recipe_word(word) for word in argv])
    except SystemExit as stop:
        if not stop.code:  # only --version ends this way
            ours = sys.modules["flodl_pipe"].__version__  # the package itself is above every part of it
            sys.stdout.write(f"flodl_pipe {ours} ({version.getvalue().strip()})\n")
            raise
        reason = complaint.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        raise ConfigError.at("", f"{reason}; --hydra-help lists the flags") from None
    if args.experimental_rerun is not None:
        raise ConfigError.at(
            "", "--experimental-rerun is not supported: it runs code from a pickle; repeat the command line"
        )
    if args.config_path is not None:
        raise ConfigError.at("", "--config-path is not supported: it would hide the built-in config; use --config-dir")
    config_dir = Path(args.config_dir).expanduser().absolute() if args.config_dir else None
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError.at("", f"--config-dir {args.config_dir}: no such folder")

    args.config_dir = config_dir

    words = list(args.overrides)
    sweeps = args.multirun or any(_key(word) == "hydra.mode" for word in words)
    rank = torchrun_rank()
    if rank is not None and sweeps:
        raise ConfigError.at("", NO_SWEEP)
    flags = [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(args, name)]
    flags += [
        f"--{name.replace('_', '-')}={getattr(args, name)}" for name in _VALUES if getattr(args, name) is not None
    ]
    asks = args.help or args.hydra_help or args.shell_completion or args.cfg is not None or args.info is not None
    arguments = Arguments(
        tuple(flags), tuple(words), config_dir, args.config_name or "config", runs=not (asks or sweeps)
    )
    return without_folder(arguments, "stdout") if rank else arguments
