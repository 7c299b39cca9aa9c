"""constraints.txt pins what an installation takes, to versions that pyproject.toml allows."""

import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = [
    line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")
]
PINS = {canonicalize_name(pin.name): pin for pin in map(Requirement, LINES)}


def asked_for():
    """Yield what the project and its extras ask for themselves."""
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras]):
        if canonicalize_name(requirement.name) != PROJECT["name"]:
            yield requirement


def applies(requirement):
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def test_every_line_pins_one_exact_version():
    assert [line for line in LINES if [part.operator for part in Requirement(line).specifier] != ["=="]] == []
    assert len(PINS) == len(LINES)


def test_what_the_project_asks_for_is_pinned_to_a_version_it_allows():
    for requirement in filter(applies, asked_for()):
        (pin,) = PINS[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement}, but pinned {pin}"


def test_what_those_ask_for_is_pinned_too():
    # Requirements that are exact already (torch's CUDA packages) need no pin.
    todo = [requirement for requirement in asked_for() if applies(requirement)]
    seen, loose = set(), set()
    while todo:
        name = canonicalize_name(todo.pop().name)
        if name in seen:
            continue
        seen.add(name)
        try:
            needed = [Requirement(line) for line in requires(name) or ()]
        except PackageNotFoundError:
            continue  # of an extra that is not installed here
        for requirement in filter(applies, needed):
            if [part.operator for part in requirement.specifier] != ["=="]:
                todo.append(requirement)
                loose |= {canonicalize_name(requirement.name)}
    assert {"jinja2", "pluggy"} <= loose
    assert loose - set(PINS) == set()
