"""What users write is pinned: keys, defaults, options, recipes. A change here is a decision, not an accident.

After a change that is meant, write the files anew and read the diff::

    python -m flodl_pipe job=schema > flodl_pipe/recipe.schema.json
    python -m tests.golden.test_surface
"""

import json
from pathlib import Path

from flodl_pipe.config import places
from flodl_pipe.config.keys import children, key_names
from flodl_pipe.config.root import Config
from flodl_pipe.config.schema import recipe_schema

SURFACE = Path(__file__).with_name("surface.txt")
SCHEMA = Path(places.__file__).parents[1] / "recipe.schema.json"


def keys(model, at):
    """Yield one line for each key below a section: its path and its default."""
    for name, field in zip(key_names(model), model.model_fields.values(), strict=True):
        sections = children(model, name)
        if not sections:
            yield f"{at}{name} = {'???' if field.is_required() else json.dumps(field.default)}"
        for section in sections:
            kind = f"[{section.model_fields['kind'].default}]" if len(sections) > 1 else ""
            yield from keys(section, f"{at}{name}{kind}.")


def surface():
    options = [file.relative_to(places.conf_dir()).with_suffix("") for file in places.conf_dir().glob("*/*.yaml")]
    recipes = places.recipe_dirs()[-1][1].glob("*.yaml")
    lines = [
        *(f"{option.parent}={option.name}" for option in sorted(options)),
        *(f"+recipe={file.stem}" for file in sorted(recipes)),
        *keys(Config, ""),
    ]
    return "\n".join(lines) + "\n"


def test_keys_options_and_recipes_are_as_pinned():
    assert surface() == SURFACE.read_text(), __doc__


def test_the_committed_schema_is_current():
    assert json.loads(SCHEMA.read_text()) == recipe_schema(), __doc__


if __name__ == "__main__":
    SURFACE.write_text(surface())
