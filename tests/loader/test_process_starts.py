"""Starting reader processes: what cannot be sent to one, and scripts that cannot be imported, are explained."""

import multiprocessing
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.process_readers import ProcessReaders
from flodl_pipe.sources.adapters import adapt
from tests.loader import process_sources as datasets
from tests.support import programs

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150.0  # each starts a Python anew, or two

FULL = pytest.mark.full
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from flodl_pipe.loader.process_readers import ProcessReaders
from flodl_pipe.sources.adapters import adapt

class Mine(list):
    def __getitem__(self, index):
        return index * 2

def main():
    source = adapt(Mine(range(50)))
    readers = ProcessReaders(source, num_processes=2, start={how!r}, max_rows=10)
    out = source.spec.empty(50)
    readers.read_into(np.arange(50), np.arange(50), out)
    print("sum", out["0"].sum())
"""


def run(code, *arguments):
    """Run Python with a script, or with code that is typed; return status, output and errors."""
    if arguments[0] in ("-", "-i"):  # one that is typed into is an interpreter of its own
        command = [sys.executable, *arguments]
        done = subprocess.run(command, input=code, cwd=ROOT, text=True, capture_output=True, timeout=LIMIT_S)
    else:
        done = programs.run(arguments, timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def refused(dataset):
    with pytest.raises(LoaderError) as caught:
        ProcessReaders(adapt(dataset), num_processes=1, start="forkserver", max_rows=1)
    text = str(caught.value)
    for part in ("processes get a pickled copy", "reader_kind=thread", "reader_start=fork", "top level of a module"):
        assert part.lower() in text.lower()
    return text


def test_a_lambda_is_refused_with_its_place():
    dataset = datasets.Rows()
    dataset.transforms = [len, {"flip": lambda sample: sample}]
    text = refused(dataset)
    assert "the dataset cannot be sent to reader processes" in text
    assert "the dataset.transforms[1]['flip'] is <function" in text


def test_a_class_within_a_function_is_refused():
    class Local(datasets.Rows):
        pass

    assert "Local" in refused(Local())


def test_an_open_file_is_refused(tmp_path):
    dataset = datasets.Rows()
    with open(tmp_path / "data", "wb") as dataset.file:
        text = refused(dataset)
    assert "the dataset.file is <_io.BufferedWriter" in text


@pytest.mark.parametrize("how", ["forkserver", pytest.param("spawn", marks=FULL)])
def test_a_script_with_a_guard_works(how, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT), how=how) + "\nif __name__ == '__main__':\n    main()\n")
    assert run("", str(script))[:2] == (0, "sum 2450\n")


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT), how="forkserver") + "\nmain()\n")
    status, output, errors = run("", str(script))
    assert status == 1
    assert output == ""
    last = errors.strip().splitlines()[-1]
    assert "LoaderError: reader process" in last
    for part in (
        "ended with status 1 before it was ready",
        str(script),
        "if __name__ == '__main__':",
        "would start over",
    ):
        assert part in last
    assert "is just starting, and begins to start others" in errors


@pytest.mark.full
def test_a_script_that_fails_when_it_is_imported_again_is_shown(tmp_path):
    script = tmp_path / "script.py"
    code = SCRIPT.format(root=str(ROOT), how="forkserver")
    script.write_text(code + "\nif __name__ == '__main__':\n    main()\nelse:\n    raise OSError('not twice')\n")
    status, _, errors = run("", str(script))
    assert status == 1
    assert "OSError: not twice" in errors
    assert "what it printed on standard error says why" in errors


def test_a_main_module_that_is_in_no_file_is_refused_before_a_process_starts(monkeypatch):
    typed = types.ModuleType("__main__")
    typed.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "__main__", typed)
    with pytest.raises(LoaderError, match=r"typed into an interpreter.*module.*reader_start=fork"):
        ProcessReaders(adapt(datasets.Rows()), num_processes=1, start="forkserver", max_rows=1)


@pytest.mark.full
@pytest.mark.parametrize("arguments", [("-",), ("-i", "-q")], ids=["stdin", "interpreter"])
def test_what_is_typed_into_an_interpreter_is_refused_before_a_process_starts(arguments):
    code = textwrap.dedent(SCRIPT.format(root=str(ROOT), how="forkserver")) + "\nmain()\n"
    _, output, errors = run(code, *arguments)
    assert "sum" not in output
    for part in ("typed into an interpreter", "module", "reader_start=fork"):
        assert part in errors


@pytest.mark.full
def test_in_an_interpreter_forks_work():
    code = SCRIPT.format(root=str(ROOT), how="fork") + "\nmain()\n"
    assert run(code, "-")[:2] == (0, "sum 2450\n")


@pytest.mark.full
def test_in_an_interpreter_datasets_of_modules_work():
    code = SCRIPT.format(root=str(ROOT), how="forkserver")
    code += "from tests.loader.process_sources import Rows\nMine = lambda _: Rows(50)\n"
    code = code.replace('out["0"]', 'out["id"]')
    assert run("", "-c", f"{code}\nmain()\n")[:2] == (0, "sum 1225\n")


@pytest.mark.full
def test_a_module_that_is_not_there_is_named(tmp_path):
    (tmp_path / "lost.py").write_text("class Lost(list):\n    pass\n")
    code = SCRIPT.format(root=str(ROOT), how="forkserver") + textwrap.dedent(f"""
        if __name__ == "__main__":
            sys.path.insert(0, {str(tmp_path)!r})
            from lost import Lost as Mine
            sys.path.pop(0)
            main()
        """)
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(code)
    status, _, errors = run("", str(script))
    assert status == 1
    assert "cannot find its code again: No module named 'lost'" in errors


def in_worker(connection):
    try:
        ProcessReaders(adapt(datasets.Rows()), num_processes=1, start="forkserver", max_rows=1)
    except LoaderError as error:
        connection.send(str(error))


def test_a_process_that_may_start_no_other_says_so():
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=in_worker, args=(theirs,), daemon=True)
    process.start()
    assert "may not start others" in ours.recv()
    process.join()
    ours.close()
    theirs.close()
