"""Fixed-size records: declared fields out of declared places."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, ConfigError, SourceError
from flodl_pipe.sources.records import RecordPart, Records
from tests.contract.sources import SourceContract, read_delivered

HEADER = 24
PARTS = {
    "label": RecordPart(0, "uint8"),
    "weight": RecordPart(1, "float32"),  # not aligned
    "image": RecordPart(5, "uint16", (2, 3)),
    "flag": RecordPart(17, "bool", (3,)),
    "again": RecordPart(2, "int64"),  # overlaps others
}
RECORD = np.dtype(
    {
        "names": ["label", "weight", "image", "flag", "again"],
        "formats": ["u1", "<f4", ("<u2", (2, 3)), ("u1", (3,)), "<i8"],
        "offsets": [0, 1, 5, 17, 2],
        "itemsize": 23,
    }
)


def write_records(folder: Path, counts: tuple[int, ...] = (60, 1, 33)) -> list[Path]:
    rng = np.random.default_rng(3)
    folder.mkdir(exist_ok=True)
    files = [folder / f"r{number}.bin" for number in range(len(counts))]
    for file, count in zip(files, counts, strict=True):
        body = rng.integers(0, 256, (count, 23), dtype=np.uint8)
        body[:, 17:20] %= 3
        body[:, 4] = 0x3F  # keeps the float finite
        file.write_bytes(bytes(HEADER) + body.tobytes())
    return files


def open_records(path: Path, **options: Any) -> Records:
    return Records.open(str(path), **{"record_bytes": 23, "header_bytes": HEADER, "parts": PARTS, **options})


class TestRecords(SourceContract):
    files: list[Path]

    def make_source(self, folder: Path) -> Records:
        self.files = write_records(folder / "records")
        return open_records(folder / "records")

    def expected(self, source: Records, index: int) -> dict[str, Any]:
        whole = [np.fromfile(file, RECORD, offset=HEADER) for file in self.files]
        row = np.concatenate(whole)[index]
        return {name: row[name] != 0 if name == "flag" else row[name] for name in PARTS}


def test_any_byte_but_zero_is_true_and_a_valid_boolean(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes([0, 1, 2, 255]))
    source = Records.open(str(tmp_path / "a.bin"), record_bytes=4, parts={"flag": RecordPart(0, "bool", (4,))})
    assert read_delivered(source, [0])["flag"].view(np.uint8).tolist() == [[0, 1, 1, 1]]


def test_large_records_are_read_exactly(tmp_path: Path) -> None:
    body = np.random.default_rng(0).integers(0, 256, (3, 400_000), dtype=np.uint8)
    body.tofile(tmp_path / "a.bin")
    parts = {"x": RecordPart(0, "uint8", (400_000,))}
    source = Records.open(str(tmp_path / "a.bin"), record_bytes=400_000, parts=parts)
    np.testing.assert_array_equal(read_delivered(source, [2, 0])["x"], body[[2, 0]])


def test_facts_count_records_and_unused_bytes(tmp_path: Path) -> None:
    write_records(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert {fact.name: fact.value for fact in open_records(tmp_path).facts()} == {
        "not record files": "notes.txt",
        "files": f"3, first {tmp_path}/r0.bin",
        "records": "94 of 23 bytes after a header of 24",
        "bytes of a record in no field": "3",
    }


def test_a_size_that_does_not_divide_is_an_error_with_all_numbers(tmp_path: Path) -> None:
    write_records(tmp_path)
    with (tmp_path / "r1.bin").open("ab") as file:
        file.write(b"four")
    with pytest.raises(SourceError, match=r"r1\.bin: 51 bytes are no multiple of record_bytes=23.*4 bytes left over"):
        open_records(tmp_path)


@pytest.mark.parametrize("size", [0, 10, HEADER])
def test_a_file_without_a_record_is_an_error(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(size))
    with pytest.raises(SourceError, match=rf"a\.bin: empty: {size} bytes"):
        open_records(tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        RecordPart(20, "uint32"),
        RecordPart(-1, "uint8"),
        RecordPart(0, "uint8", (0,)),
        RecordPart(0, "uint16", (12,)),
        RecordPart(0, "object"),
        RecordPart(0, "<u2"),
        RecordPart(0, "complex64"),
    ],
)
def test_a_field_that_does_not_fit_is_a_config_error(tmp_path: Path, part: RecordPart) -> None:
    write_records(tmp_path)
    with pytest.raises(ConfigError, match=r"source\.fields\.x"):
        open_records(tmp_path, parts={"x": part})


def test_the_fingerprint_covers_layout_and_content_but_not_the_header(tmp_path: Path) -> None:
    write_records(tmp_path)
    first = open_records(tmp_path).fingerprint()
    assert first.summary.startswith("records: 3 files, 94 records of 23 bytes, fields label uint8 (), weight float32")
    moved = {**PARTS, "label": RecordPart(21, "uint8")}
    assert open_records(tmp_path, parts=moved).fingerprint().digest != first.digest
    content = bytearray((tmp_path / "r0.bin").read_bytes())
    content[0] ^= 1
    (tmp_path / "r0.bin").write_bytes(content)
    assert open_records(tmp_path).fingerprint() == first
    content[HEADER] ^= 1
    (tmp_path / "r0.bin").write_bytes(content)
    assert open_records(tmp_path).fingerprint().digest != first.digest


def test_a_file_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    write_records(tmp_path)
    source = open_records(tmp_path)
    read_delivered(source, np.arange(94))
    os.truncate(tmp_path / "r2.bin", 100)
    with pytest.raises(ChangedError, match=r"r2\.bin"):
        read_delivered(source, np.arange(94))
