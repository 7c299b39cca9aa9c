"""Section ``source`` of kind ``token_shards`` -> :class:`flodl_pipe.sources.tokens.TokenShards`."""

from flodl_pipe.config.source_tokens import TokenShardsConfig
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.default_path import default_path
from flodl_pipe.sources.documents import Documents
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.sample_data import sample_corpus, sample_fact
from flodl_pipe.sources.tokens import TokenShards

__all__ = ["build_tokens"]


def build_tokens(config: TokenShardsConfig, data_dir: str) -> TokenShards:
    """Open the shards that a config names, the user's default folder, or the sample corpus.

    Args:
        config: The section.
        data_dir: Folder of the user's data sets.

    Raises:
        ConfigError: if the layout is impossible.
        SourceError: if data is missing, unreadable or damaged.
    """
    if config.path is not None:
        return _open(config, config.path, config.format, config.dtype)
    default = default_path(data_dir, config.kind, config.if_missing)
    if default is not None:
        return _open(config, default, config.format, config.dtype)
    if config.format in ("llmc", "megatron"):
        raise SourceError(
            f"there is no sample in format {config.format}; set source.path to your data, or source.format=raw"
        )
    if config.dtype not in (None, "uint16"):
        raise SourceError(f"the sample holds uint16 tokens, source.dtype says {config.dtype}; leave source.dtype unset")
    if config.format == "npy":
        return _open(config, str(sample_corpus("npy")), "npy", None, sample_fact())
    return _open(config, str(sample_corpus("raw")), "raw", "uint16", sample_fact())


def _open(
    config: TokenShardsConfig, path: str | list[str], file_format: str, dtype: str | None, *notes: Fact
) -> TokenShards:
    rule = config.documents
    documents = None if rule is None else Documents(rule.eos, rule.mask_targets)
    return TokenShards.open(
        path,
        seq_len=config.seq_len,
        stride=config.stride,
        tail=config.tail,
        starts=config.starts,
        vocab_size=config.vocab_size,
        documents=documents,
        file_format=file_format,
        dtype=dtype,
        notes=notes,
    )
