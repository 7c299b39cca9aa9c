"""A validated section ``transforms`` -> the chain that it describes."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flodl_pipe.config.transforms import FunctionConfig, TransformConfig
from flodl_pipe.config.transforms_base import pair_of
from flodl_pipe.config.transforms_image import (
    ColorJitterConfig,
    CutmixConfig,
    HorizontalFlipConfig,
    MixupConfig,
    NormalizeConfig,
    RandomCropConfig,
    RandomErasingConfig,
    RandomResizedCropConfig,
    ToFloatConfig,
    VerticalFlipConfig,
)
from flodl_pipe.config.transforms_text import MaskTokensConfig, RandomSpanConfig, ShiftConfig
from flodl_pipe.errors import ConfigError, FlodlPipeError, LoaderError, TransformError
from flodl_pipe.transforms.chain import Chain
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop, ToFloat, VerticalFlip
from flodl_pipe.transforms.image_color import ColorJitter
from flodl_pipe.transforms.image_erase import RandomErasing
from flodl_pipe.transforms.image_mix import Cutmix, Mixup
from flodl_pipe.transforms.image_resize import RandomResizedCrop
from flodl_pipe.transforms.protocol import BundledTransform, Transform
from flodl_pipe.transforms.tokens import MaskTokens, RandomSpan, Shift
from flodl_pipe.transforms.user_transform import CALLED, UserTransform

__all__ = ["ImportCallable", "build_chain"]

ImportCallable = Callable[[str, str], Callable[..., Any]]
"""Returns the callable that ``MODULE:CALLABLE`` names, given also the key that holds it, for messages."""


def build_chain(section: Mapping[str, TransformConfig], import_callable: ImportCallable) -> Chain:
    """Make the steps of a section, in its order.

    Args:
        section: Name -> step.
        import_callable: Imports the user's own functions.

    Raises:
        ConfigError: if a function may not be imported, is none, or does not take its arguments.
        TransformError: if the user's own class raises when an object of it is made.
    """
    return Chain([(name, _step(config, f"transforms.{name}", import_callable)) for name, config in section.items()])


def _step(config: TransformConfig, key: str, import_callable: ImportCallable) -> Transform:
    if isinstance(config, FunctionConfig):
        return _function(config, key, import_callable)
    if isinstance(config, MaskTokensConfig | RandomSpanConfig | ShiftConfig):
        return _text_step(config)
    if isinstance(config, MixupConfig):
        return Mixup(**_arguments(config))
    if isinstance(config, CutmixConfig):
        return Cutmix(**_arguments(config))
    if isinstance(config, NormalizeConfig):
        mean, std = config.statistics()
        return Normalize(mean, std, field=config.field)
    if isinstance(config, ToFloatConfig):
        return ToFloat(**_arguments(config))
    if isinstance(config, RandomCropConfig):
        return RandomCrop(**_arguments(config) | {"size": pair_of(config.size)})
    if isinstance(config, RandomResizedCropConfig):
        return RandomResizedCrop(**_arguments(config) | {"size": pair_of(config.size)})
    return _pixel_step(config)


def _pixel_step(
    config: HorizontalFlipConfig | VerticalFlipConfig | ColorJitterConfig | RandomErasingConfig,
) -> Transform:
    if isinstance(config, HorizontalFlipConfig):
        return HorizontalFlip(**_arguments(config))
    if isinstance(config, VerticalFlipConfig):
        return VerticalFlip(**_arguments(config))
    if isinstance(config, ColorJitterConfig):
        return ColorJitter(**_arguments(config))
    return RandomErasing(**_arguments(config))


def _text_step(config: MaskTokensConfig | RandomSpanConfig | ShiftConfig) -> Transform:
    if isinstance(config, MaskTokensConfig):
        return MaskTokens(**_arguments(config))
    if isinstance(config, RandomSpanConfig):
        return RandomSpan(**_arguments(config))
    return Shift(**_arguments(config))


def _arguments(config: TransformConfig) -> dict[str, Any]:
    """Return the keys of a step as arguments: classes call theirs like the keys, and take ranges as tuples."""
    values = dict(config)
    del values["kind"]
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _function(config: FunctionConfig, key: str, import_callable: ImportCallable) -> Transform:
    found = import_callable(config.path, f"{key}.path")
    args = copy.deepcopy(config.args)  # it may keep and change them
    is_class = inspect.isclass(found)
    made = _object(found, config, key, args) if is_class else found
    if isinstance(made, BundledTransform) and config.scope in (None, made.scope):
        return made
    given = {"made_with" if is_class else "args": args}
    try:
        return UserTransform(made, config.scope, config.path, **given)
    except LoaderError as error:
        raise ConfigError.at(key, str(error)) from None


def _object(found: Callable[..., Any], config: FunctionConfig, key: str, args: dict[str, Any]) -> Any:
    """Return an object of the user's own class."""
    try:
        inspect.signature(found).bind(**args)
    except TypeError as error:
        raise ConfigError.at(f"{key}.args", f"do not fit {config.path}: {error}; correct them or the class") from None
    except ValueError:  # some classes of C code have no signature; calling them says what is wrong
        pass
    try:
        made = found(**args)
    except FlodlPipeError:
        raise
    except (Exception, SystemExit) as error:
        raise TransformError(f"{key}.path={config.path} raised {type(error).__qualname__}: {error}") from error
    if not callable(made):
        raise ConfigError.at(f"{key}.path", f"objects of {config.path} cannot be called, and {CALLED}")
    return made
