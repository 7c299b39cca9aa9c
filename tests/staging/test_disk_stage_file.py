"""The stage's file has no name, goes with its process however that ends, and says what was refused when it is made.

White box: the file and its descriptor are looked at, a lock is held as another thread would, and the call that reserves
space is refused.
"""

import ctypes
import errno
import itertools
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import ConfigError, StagingError
from flodl_pipe.staging import disk_file
from tests.staging.disk_rows import SPECS, Rows, fill, make_stage, open_descriptors, overwrite, read_through
from tests.support import programs


def without_tmpfile(monkeypatch, number: int = errno.EOPNOTSUPP) -> None:
    open_file = os.open

    def refuse(path, flags, *arguments, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, os.strerror(number))
        return open_file(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)


def refusing(number: int):
    def refuse(*arguments, **named):
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.fixture
def source():
    return Rows(SPECS["words"], 300)


@pytest.mark.parametrize("number", [None, errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_the_file_has_no_name_and_its_space_is_reserved(source, tmp_path, monkeypatch, number):
    if number is not None:
        without_tmpfile(monkeypatch, number)
    stage = make_stage(source, tmp_path)
    assert list(tmp_path.iterdir()) == []
    status = os.fstat(stage._file.descriptor)
    assert (status.st_nlink, status.st_size, status.st_mode & 0o777) == (0, 300 * 2056, 0o600)
    assert status.st_blocks * 512 >= status.st_size
    assert not os.get_inheritable(stage._file.descriptor)
    fill(stage, source, np.arange(300))
    assert read_through(stage, source, np.arange(300)) == 300
    stage.close()


def test_the_file_can_get_no_name_later(source, tmp_path):
    stage = make_stage(source, tmp_path)
    linkat = ctypes.CDLL(None, use_errno=True).linkat  # os.link does not follow what it is given
    path = f"/proc/self/fd/{stage._file.descriptor}"
    here, follow = -100, 0x400
    assert linkat(here, os.fsencode(path), here, os.fsencode(tmp_path / "name"), follow) == -1
    assert ctypes.get_errno() == errno.ENOENT
    stage.close()


def test_the_log_says_where_it_is_and_how_to_see_it(source, tmp_path, caplog):
    caplog.set_level(logging.INFO, "flodl_pipe")
    make_stage(source, tmp_path).close()
    (record,) = caplog.records
    pid = os.getpid()
    assert record.getMessage() == (
        f"disk stage: 602 KiB in {tmp_path}, a file without a name held by process {pid}; du does not show it, "
        f"lsof -p {pid} does"
    )


def run_script(body: str, folder: Path, **named) -> subprocess.CompletedProcess[str]:
    head = """
        import os, resource, signal, sys
        from pathlib import Path
        import numpy as np
        from tests.staging.disk_rows import *
        folder = Path(sys.argv[1])
        source = Rows(SPECS["words"], 300)
    """
    script = textwrap.dedent(head) + textwrap.dedent(body)
    return programs.run(["-c", script, str(folder)], **named)


@pytest.mark.parametrize("tmpfile", [True, pytest.param(False, marks=pytest.mark.full)])
def test_nothing_is_left_after_a_kill(tmp_path, tmpfile):
    hide = "" if tmpfile else "monkey()"
    result = run_script(
        f"""
        def monkey():
            import errno
            open_file = os.open
            def refuse(path, flags, *arguments, **named):
                if flags & os.O_TMPFILE == os.O_TMPFILE:
                    raise OSError(errno.EOPNOTSUPP, "")
                return open_file(path, flags, *arguments, **named)
            os.open = refuse
        {hide}
        stage = make_stage(source, folder)
        fill(stage, source, np.arange(300))
        print(read_through(stage, source, np.arange(300)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert (result.returncode, result.stdout) == (-9, "300\n"), result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_neither_reads_nor_writes_nor_frees_it(tmp_path):
    result = run_script(
        """
        stage = make_stage(source, folder)
        fill(stage, source, np.arange(200))
        stage._lock.acquire()  # as if another thread were in an offer
        child = os.fork()
        if not child:
            try:
                for _ in range(2):
                    assert read_through(stage, source, np.arange(300)) == 0
                assert "was forked from" in stage.count().off
                stage.close()
                os._exit(7)
            finally:
                os._exit(1)
        stage._lock.release()
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert read_through(stage, source, np.arange(200)) == 200
        child = os.fork()
        if not child:
            try:
                stage.close()  # without having been used there
                os._exit(8)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
        assert read_through(stage, source, np.arange(300)) == 200
        assert read_through(stage, source, np.arange(300)) == 300
        assert stage.count().off is None
        """,
        tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the disk stage is off in this process") == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_a_child_that_lives_on_does_not_keep_the_space(source, tmp_path, damaged):
    stage = make_stage(source, tmp_path)
    child = os.open(f"/proc/self/fd/{stage._file.descriptor}", os.O_RDONLY)  # as a forked child has it
    if damaged:
        fill(stage, source, np.arange(10))
        overwrite(stage, 0, bytes(100))
        assert read_through(stage, source, np.arange(10)) == 0
    else:
        stage.close()
    assert (os.fstat(child).st_size, os.fstat(child).st_blocks) == (0, 0)
    os.close(child)


@pytest.mark.parametrize(
    ("name", "rule"), [("missing/folder", "does not exist; make it"), ("file", "is not a folder; give a folder")]
)
@pytest.mark.parametrize("tmpfile", [True, False])
def test_a_wrong_folder_is_refused(source, tmp_path, monkeypatch, name, rule, tmpfile):
    (tmp_path / "file").touch()
    if not tmpfile:
        without_tmpfile(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        make_stage(source, tmp_path / name)
    (problem,) = caught.value.problems
    assert problem.key == "loader.disk_stage_dir"
    assert problem.message.startswith(f"{str(tmp_path / name)!r} {rule}, or set loader.disk_stage_dir to another")


@pytest.mark.parametrize(
    ("number", "rule"),
    [(errno.EACCES, "may not be written to"), (errno.EPERM, "may not be written to"), (errno.EROFS, "read-only")],
)
@pytest.mark.parametrize("call", ["open", "unlink"])
def test_a_folder_that_may_not_be_written_to_is_refused(source, tmp_path, monkeypatch, number, rule, call):
    if call == "unlink":
        without_tmpfile(monkeypatch)
    baseline = open_descriptors()
    monkeypatch.setattr(os, call, refusing(number))
    with pytest.raises(ConfigError, match=rf"loader.disk_stage_dir: .*{rule}.*\({os.strerror(number)}\)"):
        make_stage(source, tmp_path)
    monkeypatch.undo()
    assert open_descriptors() == baseline


def test_too_many_open_files_are_named(tmp_path):
    result = run_script(
        """
        from flodl_pipe.errors import StagingError
        held = [os.open("/dev/null", os.O_RDONLY)]
        limit = held[0] + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            make_stage(source, folder)
        except StagingError as error:
            print(error)
        """,
        tmp_path,
    )
    assert "too many files are open" in result.stdout, result.stderr
    assert "ulimit -n" in result.stdout


def test_a_limit_on_file_sizes_is_named(tmp_path):
    result = run_script(
        """
        from flodl_pipe.errors import StagingError
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            make_stage(source, folder)
        except StagingError as error:
            print(error)
        """,
        tmp_path,
    )
    assert f"602 KiB in {tmp_path}" in result.stdout, result.stderr
    assert "ulimit -f" in result.stdout


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_the_space_is_refused_when_it_is_made(source, tmp_path, monkeypatch, number):
    monkeypatch.setattr(disk_file, "_fallocate", refusing(number))
    baseline = open_descriptors()
    with pytest.raises(StagingError) as caught:
        make_stage(source, tmp_path)
    assert open_descriptors() == baseline
    message = str(caught.value)
    assert message.startswith(f"the disk stage asked for 602 KiB in {tmp_path}, which has ")
    assert f" free, and could not get it ({os.strerror(number)}); lower loader.disk_stage, make room" in message


def test_a_file_system_that_cannot_reserve_is_said_and_used(source, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "flodl_pipe")
    monkeypatch.setattr(disk_file, "_fallocate", refusing(errno.EOPNOTSUPP))
    stage = make_stage(source, tmp_path)
    assert "its space is not reserved" in caplog.text
    fill(stage, source, np.arange(300))
    assert read_through(stage, source, np.arange(300)) == 300
    stage.close()


def test_reserving_goes_on_after_a_signal(source, tmp_path, monkeypatch):
    reserve, calls = disk_file._fallocate, []

    def interrupted(descriptor, num_bytes):
        calls.append(num_bytes)
        if len(calls) < 3:
            raise InterruptedError(errno.EINTR, "")
        reserve(descriptor, num_bytes)

    monkeypatch.setattr(disk_file, "_fallocate", interrupted)
    make_stage(source, tmp_path).close()
    assert len(calls) == 3


def test_another_system_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(StagingError, match=r"needs 64-bit Linux, and this is darwin.*leave it at 0"):
        make_stage(source, tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_small_disk_is_refused_when_it_is_made(source, small_disk):
    with pytest.raises(StagingError, match=r"asked for 602 KiB in .*, which has 256 KiB free"):
        make_stage(source, small_disk)
    assert os.statvfs(small_disk).f_bavail * 4096 == 256 << 10
    make_stage(source, small_disk, count=100).close()


def test_a_small_disk_that_fills_up_switches_the_stage_off(source, small_disk, monkeypatch, caplog):
    monkeypatch.setattr(disk_file, "_fallocate", refusing(errno.EOPNOTSUPP))
    stage = make_stage(source, small_disk)
    order = np.random.default_rng(0).permutation(300)
    for _ in range(2):
        fill(stage, source, order)
    assert "No space left on device" in stage.count().off
    assert caplog.text.count("was switched off") == 1
    assert os.statvfs(small_disk).f_bavail * 4096 == 256 << 10
    stage.close()


def test_written_pages_leave_the_page_cache_in_batches(source, tmp_path, monkeypatch):
    advised = []
    monkeypatch.setattr(disk_file, "DROP_BYTES", 100_000)
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *arguments: advised.append(arguments))
    stage = make_stage(source, tmp_path)
    fill(stage, source, np.random.default_rng(0).permutation(300), batch=10)
    assert 2 <= len(advised) <= 8
    assert {advice for _, _, advice in advised} == {os.POSIX_FADV_DONTNEED}
    ranges = [(first, first + count) for first, count, _ in advised]
    assert (ranges[0][0], ranges[-1][1]) == (0, 300 * 2056)
    # Each takes in what the one before had to leave, because it was not on disk yet.
    for (first, end), (next_first, next_end) in itertools.pairwise(ranges):
        assert first <= next_first <= end - 100_000 + 10 * 2056
        assert next_end > end
    stage.close()


def test_a_refused_advice_changes_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fadvise", refusing(errno.EINVAL))
    stage = make_stage(source, tmp_path)
    fill(stage, source, np.arange(300))
    assert read_through(stage, source, np.arange(300)) == 300
    stage.close()
