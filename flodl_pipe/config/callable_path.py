"""The name of a callable in the user's own code, ``MODULE:CALLABLE``, as several sections take it.

Only its form is checked here; :mod:`flodl_pipe.sources.imports` decides whether the module may be imported.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from flodl_pipe.config.base import fault, shown

__all__ = ["CALLABLE_PATH", "CallablePath", "callable_path"]

CALLABLE_PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"


def callable_path(value: Any) -> str:
    """Return a value that has the form of a callable's path; raise the fault of any other."""
    if isinstance(value, str) and re.fullmatch(CALLABLE_PATH, value):
        return value
    hint = ""
    if isinstance(value, str) and re.fullmatch(r"\w+(\.\w+)+", value):
        module, _, name = value.rpartition(".")
        hint = f". Did you mean '{module}:{name}'?"
    raise fault(f"must be MODULE:CALLABLE, for example mypkg.text:encode, got {shown(value)}{hint}")


CallablePath = Annotated[
    str, BeforeValidator(callable_path), WithJsonSchema({"type": "string", "pattern": f"^{CALLABLE_PATH}$"})
]
"""``MODULE:CALLABLE``."""
