"""What a host says of itself: its file, and its environment over it."""

import os
import re

import pytest

from flodl_pipe.config import host_file
from flodl_pipe.config.host_file import FILE_VARIABLE, what_the_host_says
from flodl_pipe.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_file_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(host_file, "DEFAULT_FILE", str(tmp_path / "default.yaml"))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "host.yaml"


def refused(environment):
    with pytest.raises(ConfigError) as caught:
        what_the_host_says(environment)
    return caught.value.problems


def test_a_host_may_say_nothing():
    says = what_the_host_says({"FLODL_PIPE_HOST": "", "FLODL_PIPE_DATA_DIR": " ", FILE_VARIABLE: ""})
    assert set(dict(says.said).values()) == {None}
    assert says.places == {}


def test_the_environment_stands_over_the_file(file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file.write_text("# of mine\nname: big\ngpu_ram_share: 0.5\n\ndata_dir: /scratch\ninterface: null\n")
    named = {FILE_VARIABLE: str(file)}
    says = what_the_host_says(named)
    assert dict(says.said) == {"name": "big", "gpu_ram_share": 0.5, "data_dir": "/scratch", "interface": None}
    assert says.places == {"name": f"{file}:2", "gpu_ram_share": f"{file}:3", "data_dir": f"{file}:5"}
    typed = {"FLODL_PIPE_GPU_RAM_SHARE": "1", "FLODL_PIPE_DATA_DIR": "here", "FLODL_PIPE_INTERFACE": "eth0"}
    says = what_the_host_says({**named, **typed, "FLODL_PIPE_HOST": "other"})
    assert dict(says.said) == {
        "name": "other",
        "gpu_ram_share": 1.0,
        "data_dir": str(tmp_path / "here"),
        "interface": "eth0",
    }
    assert says.places["gpu_ram_share"] == "environment: FLODL_PIPE_GPU_RAM_SHARE=1"


def test_the_default_file_is_read_if_it_is_there(tmp_path):
    (tmp_path / "default.yaml").write_text("name: box\n")
    assert what_the_host_says({}).said.name == "box"
    (tmp_path / "named.yaml").write_text("")
    assert what_the_host_says({FILE_VARIABLE: str(tmp_path / "named.yaml")}).said.name is None


@pytest.mark.parametrize(
    ("text", "key", "message", "line"),
    [
        ("name: big\ngpu_ram_shar: 1\n", "gpu_ram_shar", "unknown key. Did you mean 'gpu_ram_share'?", 2),
        ("devices: 2\n", "devices", "unknown key. Known keys of a host's own file: name, gpu_ram_share, data_dir", 1),
        ("\n\ngpu_ram_share: '1'\n", "gpu_ram_share", "must be a number, got '1'", 3),
        ("gpu_ram_share: .nan\n", "gpu_ram_share", "must be a finite number, got nan", 1),
        ("gpu_ram_share: 50\n", "gpu_ram_share", "must be at most 4.0, got 50", 1),
        ("data_dir: data\n", "data_dir", "must be an absolute path, got 'data': jobs start in folders of their own", 1),
        ("data_dir: [a]\n", "data_dir", r"must be a path, got \['a'\]", 1),
        ("name: 7\n", "name", "must be a host's name: .*, got 7", 1),
        ("interface: e th\n", "interface", "must be the name of a network interface, such as eth0, got 'e th'", 1),
        ("name: a\ndata_dir: /a\nname: b\n", "name", "is there twice, at .*host.yaml:1 too; leave one out", 3),
        ("- a\n", "", r"must be a mapping with keys of name, .*, got \['a'\]", 1),
        ("name: {a\n", "", "not valid YAML", 2),
        ("name: !!python/object/apply:os.getcwd []\n", "", "not valid YAML: could not determine a constructor", 1),
        ("data_dir: 2024-13-45\n", "data_dir", "must be an absolute path, got '2024-13-45'", 1),
        ("\nname: !!timestamp 2024-13-45\n", "name", "'2024-13-45' cannot be read as timestamp; write it in quotes", 2),
        ("name: !!bool maybe\n", "name", "'maybe' cannot be read as bool", 1),
        (f"gpu_ram_share: {'1' * 5000}\n", "gpu_ram_share", "'1{56}... cannot be read as int", 1),
        (f"gpu_ram_share: 0x{'f' * 5000}\n", "gpu_ram_share", "'0xf{54}... cannot be read as int", 1),
        (f"gpu_ram_share: 1{'0' * 400}\n", "gpu_ram_share", "got 10{56}...", 1),
        ("gpu_ram_share: true\n", "gpu_ram_share", "must be a number, got true", 1),
        ("\ndata_dir: &a [*a]\n", "", "not valid YAML: a list or mapping that holds itself, .*; write the value", 2),
        ("? [name]\n: a\n", "", "a list or mapping cannot be a key; it must be a mapping with keys of name", 1),
        ("!!set {name}\n", "", "must be a mapping with keys of name, .*, got {'name'}", 1),
        ("*a\n", "", "not valid YAML: found undefined alias", 1),
        ('name: "a\\ud800"\n', "name", r"must be a host's name: .*, got 'a\\ud800'", 1),
        ('data_dir: "/a\\ud800"\n', "data_dir", r"must be UTF-8, got '/a\\ud800'; rename the folder, or", 1),
        ('name: a\n"nam\\ud800": b\n', r"nam\ud800", "unknown key", 2),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(file, text, key, message, line):
    file.write_text(text)
    (problem,) = refused({FILE_VARIABLE: str(file)})
    assert (problem.key, problem.where) == (key, f"{file}:{line}")
    assert re.search(message, problem.message), problem.message


def test_a_date_is_text_as_it_is_in_a_recipe(file):
    file.write_text("name: 2024-13-45\n")
    assert what_the_host_says({FILE_VARIABLE: str(file)}).said.name == "2024-13-45"


def test_a_file_of_endless_brackets_is_refused(file):
    file.write_text("[" * 5000)
    (problem,) = refused({FILE_VARIABLE: str(file)})
    assert problem.message.startswith("lists and mappings lie too deep in each other to be read; it must be a mapping")
    assert problem.where == str(file)


def test_all_faults_are_told_at_once(file):
    file.write_text("gpu_ram_share: -1\nnme: x\n")
    problems = refused({FILE_VARIABLE: str(file), "FLODL_PIPE_INTERFACE": "a b"})
    assert {problem.where for problem in problems} == {
        f"{file}:1",
        f"{file}:2",
        "environment: FLODL_PIPE_INTERFACE=a b",
    }


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("FLODL_PIPE_GPU_RAM_SHARE", "half", "must be a number, got 'half'"),
        ("FLODL_PIPE_GPU_RAM_SHARE", "nan", "must be a finite number"),
        ("FLODL_PIPE_GPU_RAM_SHARE", "0", "must be above 0.0, got 0.0"),
        ("FLODL_PIPE_HOST", "a/b", "must be a host's name"),
        ("FLODL_PIPE_DATA_DIR", "~nobody-of-that-name/x", "names a home folder that cannot be found"),
    ],
)
def test_what_is_wrong_in_the_environment_is_told_with_its_variable(variable, text, message):
    (problem,) = refused({variable: text})
    assert problem.where == f"environment: {variable}={text}"
    assert message in problem.message


def test_a_folder_of_the_environment_that_is_not_utf_8_is_refused_in_words_that_can_be_printed():
    (problem,) = refused({"FLODL_PIPE_DATA_DIR": os.fsdecode(b"/data/\xff")})
    assert problem.key == "data_dir"
    assert problem.message == r"must be UTF-8, got '/data/\udcff'; rename the folder, or name a link to it"
    assert problem.where == r"environment: FLODL_PIPE_DATA_DIR=/data/\udcff"


def test_a_file_in_the_home_of_nobody_is_refused():
    (problem,) = refused({FILE_VARIABLE: "~nobody-of-that-name/x"})
    assert problem.message == "'~nobody-of-that-name/x' names a home folder that cannot be found; write the path out"
    assert problem.where == "environment: FLODL_PIPE_HOST_FILE=~nobody-of-that-name/x"


def test_a_named_file_must_be_there(file):
    (problem,) = refused({FILE_VARIABLE: str(file)})
    assert problem.message == (
        f"{file}, what this host says of itself, cannot be read (No such file or directory); "
        "FLODL_PIPE_HOST_FILE names another"
    )


def test_a_file_that_is_no_text_is_refused(file):
    file.write_bytes(b"name: \xff\xfe")
    assert "it is not UTF-8" in refused({FILE_VARIABLE: str(file)})[0].message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_default_file_that_cannot_be_read_is_not_passed_over(tmp_path):
    (tmp_path / "default.yaml").write_text("name: box\n")
    (tmp_path / "default.yaml").chmod(0)
    assert "Permission denied" in refused({})[0].message
