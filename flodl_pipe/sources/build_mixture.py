"""Section ``source`` of kind ``mixture`` -> :class:`flodl_pipe.sources.mixture.Mixture`."""

from collections.abc import Callable

from flodl_pipe.config.source_mixture import MixtureConfig
from flodl_pipe.config.source_parts import PartSource
from flodl_pipe.errors import ConfigError, Problem, SourceError
from flodl_pipe.sources.mixture import Mixture
from flodl_pipe.sources.ordering import Weights
from flodl_pipe.sources.protocol import BundledSource, Source

__all__ = ["build_mixture"]


def build_mixture(config: MixtureConfig, build_part: Callable[[PartSource], Source]) -> Mixture:
    """Open every part of a mixture, and join them.

    Args:
        config: The section.
        build_part: Opens the source of a part, its subset applied.

    Raises:
        ConfigError: if a part's layout is impossible, or parts do not fit together; keys are those of the part.
        SourceError: if data of a part is missing, unreadable or damaged; the message names the part.
    """
    parts: dict[str, Source] = {}
    try:
        for name, part in config.parts.items():
            parts[name] = _open(name, part.source, build_part)
        return Mixture(
            parts,
            [Weights(at, weights) for at, weights in config.changes()],
            block=config.block,
            num_picks=config.epoch_samples,
            max_epochs={name: part.max_epochs for name, part in config.parts.items() if part.max_epochs is not None},
        )
    except BaseException:
        for opened in parts.values():
            if isinstance(opened, BundledSource):
                opened.close()
        raise


def _open(name: str, section: PartSource, build_part: Callable[[PartSource], Source]) -> Source:
    above = f"source.parts.{name}."
    try:
        return build_part(section)
    except ConfigError as error:
        raise ConfigError(
            [
                Problem(f"{above}{fault.key}" if fault.key else above[:-1], fault.message, fault.where)
                for fault in error.problems
            ]
        ) from error
    except SourceError as error:
        raise type(error)(f"part '{name}' of the mixture ({above}source): {error}") from error
