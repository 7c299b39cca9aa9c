"""Which files a path means, and in which order."""

import os
from pathlib import Path

import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.listing import list_files

NPY = (".npy",)


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def names(path: object, suffixes: tuple[str, ...] = NPY) -> list[str]:
    return [Path(name).name for name in list_files(path, suffixes=suffixes).files]


def test_a_folder_is_sorted_by_code_point(tmp_path: Path) -> None:
    touch(tmp_path, "part-2.npy", "part-10.npy", "B.npy", "a.npy", "\u00e9.npy", "e\u0301.npy")
    expected = ["B.npy", "a.npy", "e\u0301.npy", "part-10.npy", "part-2.npy", "\u00e9.npy"]
    assert names(str(tmp_path)) == expected


@pytest.mark.parametrize("flip", [False, True])
def test_the_order_of_the_file_system_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flip: bool
) -> None:
    touch(tmp_path, "c.npy", "a.npy", "b.npy")
    scandir = os.scandir

    class Flipped:
        def __init__(self, path: str) -> None:
            with scandir(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=flip)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Flipped)
    assert names(str(tmp_path)) == ["a.npy", "b.npy", "c.npy"]
    assert names(str(tmp_path / "*.npy")) == ["a.npy", "b.npy", "c.npy"]


def test_hidden_files_are_skipped_and_foreign_ones_reported(tmp_path: Path) -> None:
    touch(tmp_path, "a.npy", ".a.npy", "._a.npy", "_SUCCESS", "a.npy.tmp", "sub/b.npy", "x.npy/c.txt")
    found = list_files(str(tmp_path), suffixes=NPY)
    assert found.files == (str(tmp_path / "a.npy"),)
    assert found.foreign == ("_SUCCESS", "a.npy.tmp", "sub/", "x.npy/")


@pytest.mark.parametrize("name", ["s[1].npy", "a#b%20c?.npy", "-dash.npy", "*.npy", "with space.npy", "quote'\".npy"])
def test_an_existing_name_is_taken_literally(tmp_path: Path, name: str) -> None:
    touch(tmp_path, name, "other.npy")
    assert names(str(tmp_path / name)) == [name]


@pytest.mark.parametrize("folder", ["run [1]", "a*b", "what?", "[", "[!x]/[y]"])
def test_signs_in_the_names_of_folders_that_exist_are_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    touch(tmp_path, "run 1/no.bin", "aXb/no.bin", "whatX/no.bin", "z/y/no.bin")
    touch(tmp_path / folder, "b.bin", "a.bin", "s[1]/c.bin", "s1/d.bin", "sub/e.bin")
    monkeypatch.chdir(tmp_path / folder)
    for pattern, expected in {
        "*.bin": ["a.bin", "b.bin"],
        "[ab].bin": ["a.bin", "b.bin"],
        "s[1]/*.bin": ["c.bin"],
        "s*/*.bin": ["d.bin", "c.bin", "e.bin"],
        "**/[ce].bin": ["c.bin", "e.bin"],
    }.items():
        found = list_files(pattern, suffixes=NPY).files
        assert [Path(name).name for name in found] == expected
        assert all(Path(name).is_relative_to(tmp_path / folder) for name in found)
    with pytest.raises(SourceError, match=r"gone\.bin does not exist; correct source\.path"):
        list_files("gone.bin", suffixes=NPY)
    with pytest.raises(SourceError, match=r"\*\.npz: no file matches"):
        list_files("*.npz", suffixes=NPY)


def test_a_pattern_matches_sorted_and_leaves_hidden_files_and_folders(tmp_path: Path) -> None:
    touch(tmp_path, "b.bin", "a.bin", ".c.bin", "sub/d.bin")
    found = list_files(str(tmp_path / "*"), suffixes=NPY)
    assert [Path(name).name for name in found.files] == ["a.bin", "b.bin"]
    assert found.foreign == ("sub/",)
    assert names(str(tmp_path / "**" / "*.bin")) == ["a.bin", "b.bin", "d.bin"]


def test_a_list_keeps_its_order(tmp_path: Path) -> None:
    touch(tmp_path, "a.npy", "b.npy", "sub/c.npy", "sub/d.npy")
    assert names([str(tmp_path / "b.npy"), str(tmp_path / "sub"), str(tmp_path / "a.npy")]) == [
        *("b.npy", "c.npy", "d.npy", "a.npy")
    ]


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.npy")
    with pytest.raises(SourceError, match=r"a\.npy is named twice; name each file once$"):
        list_files([str(tmp_path), str(tmp_path / "a.npy")], suffixes=NPY)


def test_links_are_followed_and_broken_ones_named(tmp_path: Path) -> None:
    touch(tmp_path, "store/real.npy", "data/keep.npy")
    (tmp_path / "data" / "a.npy").symlink_to("../store/real.npy")
    assert names(str(tmp_path / "data")) == ["a.npy", "keep.npy"]
    (tmp_path / "data" / "b.npy").symlink_to("../store/gone.npy")
    with pytest.raises(SourceError, match=r"b\.npy.*nowhere"):
        list_files(str(tmp_path / "data"), suffixes=NPY)
    with pytest.raises(SourceError, match=r"b\.npy.*nowhere"):
        list_files(str(tmp_path / "data" / "b.npy"), suffixes=NPY)


def test_a_relative_path_is_made_absolute_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(touch(tmp_path, "a.npy"))
    assert list_files("a.npy", suffixes=NPY).files == (str(tmp_path / "a.npy"),)


def test_a_file_address_is_decoded_and_a_plain_path_is_not(tmp_path: Path) -> None:
    touch(tmp_path, "a b.npy", "a%20b.npy")
    assert names(f"file://{tmp_path}/a%20b.npy") == ["a b.npy"]
    assert names(f"{tmp_path}/a%20b.npy") == ["a%20b.npy"]


def test_addresses_of_a_web_server_are_taken_as_they_are_and_in_order() -> None:
    addresses = ["https://host/b.npy", "http://host/a%20b.npy?raw=1"]
    assert list_files(addresses, suffixes=NPY).files == tuple(addresses)
    with pytest.raises(SourceError, match=r"b\.npy is named twice"):
        list_files(addresses[:1] * 2, suffixes=NPY)


@pytest.mark.parametrize(
    "address", ["https://host/", "https://host/folder/", "http://host/*.npy", "http://host/[ab].npy"]
)
def test_a_folder_or_pattern_of_a_web_server_is_refused_with_the_remedy(address: str) -> None:
    with pytest.raises(SourceError, match=r"a web server has no listing.*name each object in a list"):
        list_files(address, suffixes=NPY)


def test_local_and_remote_places_are_not_mixed(tmp_path: Path) -> None:
    touch(tmp_path, "a.npy")
    with pytest.raises(SourceError, match="give local places only, or remote ones only"):
        list_files([str(tmp_path), "https://host/a.npy"], suffixes=NPY)


@pytest.mark.parametrize(
    ("address", "read"), [("file://d/part-0.bin", "'d'"), ("file://part-0.bin", "'part-0.bin'"), ("FILE://", "''")]
)
def test_a_file_address_with_two_slashes_is_told_of_the_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, read: str
) -> None:
    monkeypatch.chdir(touch(tmp_path, "d/part-0.bin", "part-0.bin"))
    with pytest.raises(
        SourceError, match=rf"{address}: after file:// stands {read}.*three slashes.*plain path"
    ) as caught:
        list_files(address, suffixes=NPY)
    assert "remote" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "says"),
    [("missing.npy", "does not exist"), ("*.npz", "no file matches"), ("a.bin/x.npy", "does not exist")],
)
def test_what_is_not_there_is_an_error_with_the_absolute_path(tmp_path: Path, path: str, says: str) -> None:
    touch(tmp_path, "a.bin")
    with pytest.raises(SourceError, match=rf"{tmp_path}.*{says}"):
        list_files(str(tmp_path / path), suffixes=NPY)


def test_a_folder_without_a_wanted_file_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file ends in \.npy; it is empty"):
        list_files(str(tmp_path), suffixes=NPY)
    with pytest.raises(SourceError, match=r"no file ends in \.npy; it holds a\.bin"):
        list_files(str(touch(tmp_path, "a.bin")), suffixes=NPY)


@pytest.mark.parametrize("path", ["", "a\0b", []])
def test_nothing_at_all_is_refused(path: object) -> None:
    with pytest.raises(SourceError):
        list_files(path, suffixes=NPY)
