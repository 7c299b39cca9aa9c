import logging
import sys
import types

import pytest

from tests.support import programs

OUTSIDE = ("FLODL_PIPE_CONFIG_PATH", "HYDRA_FULL_ERROR", "RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def _clean(tmp_path, monkeypatch):
    """An empty working directory, no rank; Hydra sets up logging for a whole process, so it is put back."""
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        if handler not in root.handlers:
            root.addHandler(handler)
    root.setLevel(level)


@pytest.fixture
def folder(tmp_path):
    """Write files into the working directory."""

    def write(name, text):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    write.path = tmp_path
    return write


@pytest.fixture
def jobs(monkeypatch):
    """Replace the run job by one that notes its configs; ``jobs.act`` decides what it does."""
    module = types.ModuleType("flodl_pipe.jobs.run")
    module.seen = []
    module.act = lambda config: float(config.loader.batch_size)

    def main(config):
        module.seen.append(config)
        return module.act(config)

    module.main = main
    monkeypatch.setitem(sys.modules, "flodl_pipe.jobs.run", module)
    return module


@pytest.fixture
def call(capsys):
    """Run the program in this process; returns (status, stdout, stderr)."""
    from flodl_pipe.cli.main import main

    def run(*argv):
        status = 0
        try:
            main(argv)
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def spawn(tmp_path):
    """Run the program as a user does, in a process of its own."""
    return lambda *argv, **more: programs.run(
        ["-m", "flodl_pipe", *argv], cwd=tmp_path, env=programs.environment(**more)
    )
