"""A config with its data in another folder: hosts may keep what a recipe calls ``data_dir`` where they have room."""

from typing import Any

from flodl_pipe.config.base import StrictModel
from flodl_pipe.config.root import Config

__all__ = ["with_data_dir"]


def with_data_dir(config: Config, folder: str) -> Config:
    """Return the config with ``data_dir`` elsewhere, and with it every path of its source and order that lies in it.

    A recipe may write ``path: ${data_dir}/mine/*.npy``. By the time it is read that is a path like any other, so what
    counts is where it lies.

    Args:
        config: The config.
        folder: Where the data are, absolute.

    >>> from flodl_pipe.config.source_tokens import TokenShardsConfig
    >>> source = TokenShardsConfig(path=["/data/a.npy", "/other/b.npy"], seq_len=8)
    >>> moved = with_data_dir(Config(data_dir="/data", source=source, loader={"batch_size": 1}), "/scratch")
    >>> moved.data_dir, moved.source.path
    ('/scratch', ['/scratch/a.npy', '/other/b.npy'])
    """
    old, new = config.data_dir.rstrip("/"), folder.rstrip("/")
    moved = {name: _moved(getattr(config, name), old, new) for name in ("source", "sampling") if old}
    return config.model_copy(update={**moved, "data_dir": folder})


def _moved(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        inside = value == old or value.startswith(f"{old}/")
        return f"{new}{value[len(old) :]}" if inside else value
    if isinstance(value, StrictModel):
        fields = {name: _moved(below, old, new) for name, below in value}
        return value.model_copy(update=fields) if fields != dict(value) else value
    if isinstance(value, dict):
        return {name: _moved(below, old, new) for name, below in value.items()}
    if isinstance(value, list):
        return [_moved(below, old, new) for below in value]
    return value
