"""What do the tests see? Faults that are put into the package one at a time, each a change that somebody might make.

::

    python -m tests.seeded_faults draw --seed 11 --count 60     # a new list, in seeded_faults.json
    python -m tests.seeded_faults run                           # which of them `make test` finds, and by which test
    python -m tests.seeded_faults run --suite full --only 3,17  # the same of `make test-full`

A fault flips a comparison, drops a line or swaps two arguments. The list is drawn by a seed over all folders of the
package, two of each at least, and kept, so that figures can be compared. A change that makes no difference to anybody
is no fault: it says so (``no_fault``, with the reason), and does not count. Each is tried in a copy of the checkout,
first on the tests of its folder, then on all; the first test that fails has found it, and so has a run that hangs.

``run`` takes an hour or more, and ends with status 1 if a fault that counts was not found.
"""

import argparse
import ast
import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".json")
LIMIT_S = {"quick": 900, "full": 3600}
# What their order makes no difference to, or what any test of the line would find.
NOT_SWAPPED = {"getattr", "isinstance", "map", "max", "min", "setattr", "zip"}
FLIPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


@dataclass
class Fault:
    """A change of one file.

    Attributes:
        file: Path below the checkout.
        line: Line on which the changed text begins, when the list was drawn.
        kind: ``flip``, ``drop`` or ``swap``.
        before: Text of whole lines.
        after: What it becomes.
        no_fault: Why it makes no difference; empty for a fault.
    """

    file: str
    line: int
    kind: str
    before: str
    after: str
    no_fault: str = ""

    @property
    def part(self) -> str:
        """The folder or file of the package that it is in."""
        return Path(self.file).parts[1].removesuffix(".py")

    def apply(self, root: Path) -> bool:
        """Change the file below a folder; return whether the text was there, wherever it has moved to."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        places = [match.start() for match in re.finditer(re.escape(self.before), text)]
        if not places:
            return False
        place = min(places, key=lambda at: abs(text.count("\n", 0, at) + 1 - self.line))
        path.write_text(text[:place] + self.after + text[place + len(self.before) :], encoding="utf-8")
        return True


def candidates(path: Path) -> Iterator[Fault]:
    """Yield every change of a file that could be made."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    file = path.relative_to(ROOT).as_posix()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            if left.end_lineno == right.lineno:
                yield _changed(
                    file,
                    lines,
                    "flip",
                    left.end_lineno,
                    left.end_col_offset,
                    right.col_offset,
                    f" {FLIPS[type(node.ops[0])]} ",
                )
        elif isinstance(node, ast.Call) and len(node.args) >= 2:
            first, second = node.args[:2]
            if isinstance(node.func, ast.Name) and node.func.id in NOT_SWAPPED:
                continue
            plain = all(isinstance(each, ast.Name | ast.Attribute | ast.Subscript) for each in (first, second))
            if plain and first.lineno == second.end_lineno:
                one, other = ast.unparse(first), ast.unparse(second)
                if one != other:
                    yield _changed(
                        file, lines, "swap", first.lineno, first.col_offset, second.end_col_offset, f"{other}, {one}"
                    )
        elif isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If | ast.For | ast.While | ast.With | ast.Try
        ):
            for body in (getattr(node, name, []) for name in ("body", "orelse", "finalbody")):
                for statement in body:
                    if _can_go(statement):
                        indent = " " * statement.col_offset
                        before = "".join(lines[statement.lineno - 1 : statement.end_lineno])
                        yield Fault(file, statement.lineno, "drop", before, f"{indent}pass\n")


def _changed(file, lines, kind, line, begin, end, new):
    before = lines[line - 1]
    raw = before.encode()  # offsets of the parser count bytes
    after = (raw[:begin] + new.encode() + raw[end:]).decode()
    return Fault(file, line, kind, before, after)


def _can_go(statement: ast.stmt) -> bool:
    """Return whether a statement does something, and the code is still code without it."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call | ast.Await)
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    return isinstance(statement, ast.AugAssign | ast.Raise | ast.Delete | ast.Assert)


def draw(seed: int, count: int) -> list[Fault]:
    """Return faults over all folders of the package: two of each, the others where most code is; kinds alike."""
    chance = random.Random(seed)
    by_part: dict[str, list[Fault]] = defaultdict(list)
    for path in sorted((ROOT / "flodl_pipe").rglob("[!_]*.py")):
        for fault in candidates(path):
            by_part[fault.part].append(fault)
    found: list[Fault] = []
    kinds = ("flip", "drop", "swap")

    def take(part: str) -> None:
        wanted = min(kinds, key=lambda kind: sum(fault.kind == kind for fault in found))
        pool = [fault for fault in by_part[part] if fault.kind == wanted] or by_part[part]
        fault = chance.choice(pool)
        by_part[part].remove(fault)
        found.append(fault)

    weights = {part: len(faults) for part, faults in by_part.items()}
    for part in sorted(by_part):
        for _ in range(min(2, len(by_part[part]))):
            take(part)
    while len(found) < count:
        take(chance.choices(list(weights), list(weights.values()))[0])
    return sorted(found, key=lambda fault: (fault.file, fault.line))


def load() -> tuple[int, list[Fault]]:
    """Return the seed and the list that is kept."""
    kept = json.loads(LIST.read_text(encoding="utf-8"))
    return kept["seed"], [Fault(**fault) for fault in kept["faults"]]


def copy_checkout(folder: Path) -> None:
    """Copy what git knows of the checkout, as it is now."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def try_out(fault: Fault, suite: str, workers: int) -> str:
    """Return which test finds a fault: its name, ``hangs``, or nothing."""
    with checkout() as folder:
        if not fault.apply(folder):
            return "is not there any more: draw another list"
        own = f"tests/{fault.part}"
        for where in ([own] if (folder / own).is_dir() else []) + ["tests"]:
            command = [where, "-x", "--numprocesses", str(workers), *(["-m", "not full"] if suite == "quick" else [])]
            try:
                done = pytest(folder, command, LIMIT_S[suite])
            except subprocess.TimeoutExpired:
                return "hangs"
            if done.returncode not in (0, 5):  # 5: there was no test
                failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
                if not failed:
                    return f"status {done.returncode}: {done.stdout.strip().splitlines()[-1:]}"
                require_green(failed[0])
                return failed[0]
    return ""


@contextlib.contextmanager
def checkout() -> Iterator[Path]:
    """Make a copy of the checkout, in a folder that tests have for their temporary files as well."""
    with tempfile.TemporaryDirectory(prefix="fault-") as name:
        Path(name).chmod(0o755)  # some tests look at files as another user does
        folder = Path(name) / "checkout"
        copy_checkout(folder)
        if (ROOT.parent / "shared").is_dir():
            (Path(name) / "shared").symlink_to(ROOT.parent / "shared")
        yield folder


def pytest(folder: Path, command: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder.parent)}
    whole = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *command]
    return subprocess.run(whole, cwd=folder, env=environment, text=True, capture_output=True, timeout=limit_s)


def require_green(test: str) -> None:
    """End the program if a test fails without a fault, too."""
    with checkout() as folder:
        done = pytest(folder, [test, "--numprocesses", "0"], LIMIT_S["quick"])
        if done.returncode:
            raise SystemExit(f"{test} fails without a fault as well:\n{done.stdout}")


def run(options: argparse.Namespace) -> int:
    """Try the faults of the list, and say which are found."""
    seed, faults = load()
    chosen = [int(number) for number in options.only.split(",")] if options.only else list(range(1, len(faults) + 1))
    print(f"faults of seed {seed}, suite {options.suite}", flush=True)
    missed = 0
    for number in chosen:
        fault = faults[number - 1]
        if fault.no_fault and not options.all:
            print(
                f"{number:3d}  -       {fault.file}:{fault.line} {fault.kind}: no fault, {fault.no_fault}", flush=True
            )
            continue
        by = try_out(fault, options.suite, options.workers)
        missed += not by
        print(f"{number:3d}  {'found ' if by else 'MISSED'}  {fault.file}:{fault.line} {fault.kind}  {by}", flush=True)
    print(f"{missed} of {len(chosen)} were not found")
    return 1 if missed else 0


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    drawing = verbs.add_parser("draw", help="draw a list anew")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=60)
    running = verbs.add_parser("run", help="try the faults of the list")
    running.add_argument("--suite", choices=["quick", "full"], default="quick")
    running.add_argument("--only", help="numbers, from 1")
    running.add_argument("--all", action="store_true", help="those that are no faults too")
    running.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    if options.verb == "run":
        return run(options)
    faults = draw(options.seed, options.count)
    kept = {"seed": options.seed, "faults": [asdict(fault) for fault in faults]}
    LIST.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for number, fault in enumerate(faults, start=1):
        print(f"{number:3d}  {fault.file}:{fault.line} {fault.kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
