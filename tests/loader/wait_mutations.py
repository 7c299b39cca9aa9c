"""Waits of the device path, found in the source, and code without one of them.

A wait is a call ``x.wait(stream, event)``, ``x.synchronize(event)`` or ``x.keep_for(stream, tensors)``: no lock or
process has a ``wait`` of two arguments. Code is exchanged function by function, in place, so that whoever holds the
function already runs what it was exchanged for.
"""

import ast
import contextlib
import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import flodl_pipe

PACKAGE = Path(flodl_pipe.__file__).parent
PARTS = ("loader", "staging")
SHAPES = {"wait": 2, "synchronize": 1, "keep_for": 2}


@dataclass(frozen=True)
class Wait:
    """One wait in the source.

    Attributes:
        path: The file.
        line: Its first line.
        end: Its last line.
        name: Which call.
        text: The call as written.
        functions: Names of the classes and functions around it, outermost first.
        number: Which wait of its file it is.
    """

    path: Path
    line: int
    end: int
    name: str
    text: str
    functions: tuple[str, ...]
    number: int

    def __str__(self):
        return f"{self.path.relative_to(PACKAGE.parent)}:{self.line} {self.text}"

    @property
    def module(self):
        return ".".join(self.path.relative_to(PACKAGE.parent).with_suffix("").parts)

    def covers(self, place):
        """Return whether a place ``file:line`` is this wait."""
        path, _, line = place.rpartition(":")
        return Path(path) == self.path and self.line <= int(line) <= self.end


def is_wait(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and len(node.args) + len(node.keywords) == SHAPES.get(node.func.attr, -1)
    )


def waits_of(path):
    found = []

    def visit(node, around):
        if is_wait(node):
            line, end, text = node.lineno, node.end_lineno, ast.unparse(node)
            found.append(Wait(path, line, end, node.func.attr, text, around, len(found)))
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            around = (*around, node.name)
        for child in ast.iter_child_nodes(node):
            visit(child, around)

    visit(ast.parse(path.read_text()), ())
    return found


def all_waits():
    """Return every wait of the parts that work on a device, file by file."""
    return [wait for part in PARTS for path in sorted((PACKAGE / part).glob("*.py")) for wait in waits_of(path)]


class _Remover(ast.NodeTransformer):
    def __init__(self, number):
        self.number, self.seen = number, -1

    def visit_Call(self, node):
        # In the order of `waits_of`: a wait is counted before what stands inside it.
        if is_wait(node):
            self.seen += 1
            if self.seen == self.number:
                return ast.copy_location(ast.Constant(None), node)
        return self.generic_visit(node)


def _function_of(wait):
    """Return the outermost function around a wait."""
    found = importlib.import_module(wait.module)
    for name in wait.functions:
        found = found.__dict__[name]
        if isinstance(found, property):
            found = found.fget
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        found = inspect.unwrap(found) if callable(found) else found
        if isinstance(found, FunctionType):
            return found
    raise AssertionError(f"{wait} is in no function; a wait must not happen on import")


def _code_of(code, name):
    """Return the code of a qualified name within a module's."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                return constant
            inner = _code_of(constant, name)
            if inner is not None:
                return inner
    return None


@contextlib.contextmanager
def without(wait):
    """Run code without a wait, as long as the context lasts."""
    function = _function_of(wait)
    tree = ast.fix_missing_locations(_Remover(wait.number).visit(ast.parse(wait.path.read_text())))
    code = _code_of(compile(tree, str(wait.path), "exec"), function.__code__.co_qualname)
    before = function.__code__
    assert code is not None
    assert code.co_code != before.co_code, f"{wait} could not be taken out"
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before
