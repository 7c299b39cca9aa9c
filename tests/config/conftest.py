import pytest


@pytest.fixture(autouse=True)
def _no_outside_config(monkeypatch):
    """Recipes come from where a test puts them, and no test runs as a rank."""
    for name in ("FLODL_PIPE_CONFIG_PATH", "HYDRA_FULL_ERROR", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory; returns a function that writes files into it."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    write.path = tmp_path
    return write
