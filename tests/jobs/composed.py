"""Configs for tests of jobs, none of which is composed: that takes sixty times as long, and is tests/config's subject.

The words are those of a command line, read by Hydra's own parser; what none of them says, the models fill in, as the
files of ``conf/`` would.
"""

from hydra.core.override_parser.overrides_parser import OverridesParser

from flodl_pipe.config.root import Config
from flodl_pipe.config.validate import validate

OPTIONS = ("source", "job")


def composed(*words: str) -> Config:
    """Return the config that these words make, without a recipe; ``source`` and ``job`` may be chosen."""
    tree: dict = {"source": {"kind": "token_shards"}, "job": {"kind": "run"}}
    for word in OverridesParser.create().parse_overrides(list(words)):
        *above, last = word.key_or_group.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[last] = {"kind": word.value()} if not above and last in OPTIONS else word.value()
    return validate(tree)
