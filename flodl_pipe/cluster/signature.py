"""What of a config must be the same on all ranks, and what a host may have its own way.

Everything must be the same but what is listed here: where data lies, memory, readers, devices, reports. A key that is
added some day is compared until somebody says that it may differ. Data and order are compared by their content beside
this, so a path may differ, and what lies there may not.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.config.cluster_host import HostConfig
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.root import Config
from flodl_pipe.config.sampling import INVERSE_FREQUENCY, SamplingConfig
from flodl_pipe.config.source_base import SourceSection, SubsetConfig
from flodl_pipe.config.source_custom import CustomConfig

__all__ = ["config_facts"]

_HOSTS_OWN: Mapping[type[BaseModel], frozenset[str]] = {
    SourceSection: frozenset({"path", "files", "if_missing"}),
    LoaderConfig: frozenset(
        {
            *("device", "mode", "prefetch", "readers", "reader_kind", "reader_start", "check_purity", "simulated"),
            *("vram_max_usage", "vram_pool", "activation_reserve", "gpu_ram_share", "ram_max_usage", "sample_cache"),
            *("disk_stage", "disk_stage_dir"),
        }
    ),
    ClusterConfig: frozenset({"gpu_ram_share", "rendezvous", "timeout_s"}),
    HostConfig: frozenset({"address", "interface", "gpu_ram_share", "data_dir"}),
}
"""Keys that may differ, by model."""

_FILES: Mapping[type[BaseModel], frozenset[str]] = {
    SubsetConfig: frozenset({"indices"}),
    SamplingConfig: frozenset({"lengths", "weights"}),
}
"""Keys that name a file whose content is a part of the data or the order: only whether they are set is compared."""

_STEPS = ("kind", "epochs", "max_steps", "save_every_steps")
"""Keys of ``job`` that say when ranks meet and end."""

_A_FILE = "(a file)"
# A file or an address, among what a function of the user's own is given.
_PATH = re.compile(r"[/\\]|^[~.]")


def config_facts(config: Config) -> dict[str, str]:
    """Return what must be the same on all ranks, a JSON text for each section.

    >>> from flodl_pipe.config.compose import load_config
    >>> facts = config_facts(load_config("mnist", "loader.batch_size=8", "loader.readers=3"))
    >>> list(facts), "readers" in facts["loader"], '"batch_size": 8' in facts["loader"]
    (['source', 'sampling', 'transforms', 'loader', 'cluster', 'job'], False, True)
    """
    job = dict(config.job)
    facts = {
        "source": _plain(config.source),
        "sampling": _plain(config.sampling),
        "transforms": _plain(config.transforms),
        "loader": _plain(config.loader),
        "cluster": _plain(config.cluster),
        # Only the first rank reads and writes these files, but all meet for them.
        "job": {key: job[key] for key in _STEPS if key in job}
        | {key: _A_FILE if job[key] else None for key in ("save", "resume") if key in job},
    }
    return {section: json.dumps(value) for section, value in facts.items()}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, without what may differ. Keys stay in their order: steps are done in theirs."""
    if isinstance(value, CustomConfig):
        return {**dict(_compared(value)), "args": _without_paths(value.args)}
    if isinstance(value, BaseModel):
        return dict(_compared(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _compared(model: BaseModel) -> Iterator[tuple[str, Any]]:
    own = _listed(_HOSTS_OWN, model)
    files = _listed(_FILES, model)
    for key, value in model:
        if key in files and value not in (None, INVERSE_FREQUENCY):
            yield key, _A_FILE
        elif key not in own:
            yield key, _plain(value)


def _listed(lists: Mapping[type[BaseModel], frozenset[str]], model: BaseModel) -> frozenset[str]:
    return frozenset().union(*(keys for kind, keys in lists.items() if isinstance(model, kind)))


def _without_paths(value: Any) -> Any:
    """Return the arguments of a function of the user's own, with one word for all paths and addresses."""
    if isinstance(value, str):
        return _A_FILE if _PATH.search(value) else value
    if isinstance(value, Mapping):
        return {str(key): _without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(item) for item in value]
    return _plain(value)
