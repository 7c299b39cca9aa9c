"""Section ``source`` of kind ``shakespeare`` -> :class:`flodl_pipe.sources.text.Text`."""

from pathlib import Path

from flodl_pipe.config.source_text import TextConfig
from flodl_pipe.sources.default_path import default_path
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.sample_text import sample_text, sample_text_fact
from flodl_pipe.sources.text import Text

__all__ = ["build_text"]


def build_text(config: TextConfig, data_dir: str) -> Text:
    """Open the text that a config names, the user's default folder, or the sample text.

    In the default folder ``input.txt`` is the text if it is there, otherwise all ``.txt`` files are.

    Args:
        config: The section.
        data_dir: Folder of the user's data sets.

    Raises:
        ConfigError: if the layout is impossible.
        SourceError: if data is missing, unreadable, not UTF-8 or too short.
    """
    if config.path is not None:
        return _open(config, config.path)
    default = default_path(data_dir, config.kind, config.if_missing)
    if default is None:
        return _open(config, str(sample_text()), sample_text_fact())
    usual = Path(default, "input.txt")
    return _open(config, str(usual) if usual.is_file() else default)


def _open(config: TextConfig, path: str | list[str], *notes: Fact) -> Text:
    return Text.open(
        path,
        seq_len=config.seq_len,
        split=config.split,
        train_fraction=config.train_fraction,
        stride=config.stride,
        tail=config.tail,
        starts=config.starts,
        notes=notes,
    )
