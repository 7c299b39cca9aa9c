"""The name of a callable in the user's own code, ``MODULE:CALLABLE``, as several sections take it.

Only its form is checked here; :mod:`flodl_pipe.sources.imports` decides whether the module may be imported.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from flodl_pipe.config.base import fault, shown

__all__ = ["CallablePath"]

_PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"


def _callable_path(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(_PATH, value):
        return value
    hint = ""
    if isinstance(value, str) and re.fullmatch(r"\w+(\.\w+)+", value):
        module, _, name = value.rpartition(".")
        hint = f". Did you mean '{module}:{name}'?"
    raise fault(f"must be MODULE:CALLABLE, for example mypkg.text:encode, got {shown(value)}{hint}")


CallablePath = Annotated[
    str, BeforeValidator(_callable_path), WithJsonSchema({"type": "string", "pattern": f"^{_PATH}$"})
]
"""``MODULE:CALLABLE``."""
