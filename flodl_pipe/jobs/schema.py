"""``job=schema``: print the JSON schema of a recipe, for an editor to complete and check recipes with.

::

    flodl-pipe job=schema > recipe.schema.json
"""

import json
import sys

from flodl_pipe.config.root import Config
from flodl_pipe.config.schema import recipe_schema

__all__ = ["main"]


def main(config: Config) -> None:
    """Print the schema, as the package's ``recipe.schema.json`` has it.

    Args:
        config: Not read; the schema is the same for every config.
    """
    del config
    json.dump(recipe_schema(), sys.stdout, indent=1)
    sys.stdout.write("\n")
