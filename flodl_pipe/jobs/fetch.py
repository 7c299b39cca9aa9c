"""``job=fetch``: download known data sets to where the sources look for them.

::

    flodl-pipe job=fetch job.datasets=mnist
    flodl-pipe job=fetch 'job.datasets=[cifar10,shakespeare]' data_dir=/data
    flodl-pipe +recipe=cifar10 job=fetch

What is there already is checked and kept; a download that was cut goes on when the command is given again.
"""

import logging
import sys
from pathlib import Path

from flodl_pipe.config.job import FetchJob
from flodl_pipe.config.root import Config
from flodl_pipe.errors import ConfigError
from flodl_pipe.jobs.fetch_progress import fetch_view
from flodl_pipe.reports.tables import Section, print_sections
from flodl_pipe.sources.fetch_set import fetch_set
from flodl_pipe.sources.fetched_files import Found
from flodl_pipe.sources.known_sets import KNOWN_SETS, KnownSet, known_set_of
from flodl_pipe.units import format_bytes

__all__ = ["main"]

_log = logging.getLogger("flodl_pipe")


def main(config: Config) -> None:
    """Download the data sets that a config names, one after the other, and say what is there then.

    Args:
        config: The config; its ``job`` is a :class:`FetchJob`.

    Raises:
        ConfigError: if it names no data set and its source has none.
        SourceError: if a set could not be completed; what came before is kept.
        KeyboardInterrupt: after Ctrl-C; the partial file is kept.
    """
    job = config.job
    assert isinstance(job, FetchJob)
    sections = []
    for known in _sets(job, config.source.kind):
        folder = Path(config.data_dir, known.name)
        try:
            with fetch_view(config.reports.progress, sys.stderr) as view:
                found = fetch_set(known, folder, job.mirror, view.show)
        except KeyboardInterrupt:
            _log.warning("interrupted: what is there so far is kept in %s; the same command goes on from it", folder)
            raise
        sections.append(_section(known, folder, found))
    print_sections(sections, sys.stdout)


def _sets(job: FetchJob, kind: str) -> list[KnownSet]:
    if job.datasets is not None:
        return [KNOWN_SETS[name] for name in (job.datasets if isinstance(job.datasets, list) else [job.datasets])]
    known = known_set_of(kind)
    if known is None:
        raise ConfigError.at(
            "job.datasets",
            f"null means the set of the source, and there is none to download for source kind '{kind}'; name one of "
            f"{', '.join(KNOWN_SETS)}, or a recipe that reads one",
        )
    return [known]


def _section(known: KnownSet, folder: Path, found: tuple[Found, ...]) -> Section:
    rows = [("folder", str(folder))]
    rows += [(file.name, f"{format_bytes(file.num_bytes)}, sha256 {file.sha256[:12]}..., {file.how}") for file in found]
    return Section(known.name, tuple(rows))
