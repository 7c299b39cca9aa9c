"""The whole config: every section, the pinned engine, and the rules that span sections."""

from typing import Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import LocalPath, StrictModel, fault
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.config.job import JobConfig, RunJob
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.reports import ReportsConfig
from flodl_pipe.config.sampler_conflicts import sampler_conflicts
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.config.source import SourceConfig
from flodl_pipe.config.transforms import TransformsSection

__all__ = ["ENGINE", "Config", "EngineConfig"]

ENGINE: Literal["flodl_pipe.pipeline.build_loader"] = "flodl_pipe.pipeline.build_loader"


class EngineConfig(StrictModel):
    """The one object that is built by name. The name is fixed: a config can never choose code to run."""

    target: Literal["flodl_pipe.pipeline.build_loader"] = Field(default=ENGINE, alias="_target_")
    """Always `flodl_pipe.pipeline.build_loader`."""


class Config(StrictModel):
    """A pipeline and what to do with it."""

    data_dir: LocalPath = "data"
    """Folder of data sets; a source with no path looks in `<data_dir>/<kind>`."""

    allow_import: list[str] = Field(default=[])
    """Modules of your own that `source.factory` and the like may import. Only the command line can set it."""

    source: SourceConfig
    """The data."""

    sampling: SamplingConfig = SamplingConfig()
    """Order and epochs."""

    transforms: TransformsSection = Field(default={})
    """What is done to a batch: named steps, in the order in which they are written."""

    loader: LoaderConfig
    """Batches and memory."""

    cluster: ClusterConfig = ClusterConfig()
    """Hosts, devices and shares."""

    reports: ReportsConfig = ReportsConfig()
    """What a run shows of itself."""

    job: JobConfig = RunJob()
    """What to do."""

    engine: EngineConfig = EngineConfig()
    """Pinned."""

    @model_validator(mode="after")
    def _names_fit_source(self) -> "Config":
        names = self.loader.names
        fields = self.source.field_names()
        if names is not None and fields is not None and len(names) != len(fields):
            raise fault(
                f"must have one name for each of the {len(fields)} fields of source kind '{self.source.kind}' "
                f"({', '.join(fields)}), got {len(names)}: {', '.join(names)}",
                at=["loader", "names"],
            )
        return self

    @model_validator(mode="after")
    def _each_rank_has_a_row(self) -> "Config":
        rows, num_ranks = self.loader.global_batch_size, self.cluster.num_ranks
        if rows is not None and num_ranks is not None and rows < num_ranks:
            raise fault(
                f"{rows} is smaller than the {num_ranks} ranks of cluster.hosts, and each rank needs at least one row; "
                f"set it to {num_ranks} or more",
                at=["loader", "global_batch_size"],
            )
        return self

    @model_validator(mode="after")
    def _a_batch_sampler_makes_the_batches(self) -> "Config":
        problems = sampler_conflicts(
            batch_sampler=self.sampling.batch_sampler,
            batch_size=self.loader.batch_size,
            global_batch_size=self.loader.global_batch_size,
        )
        for problem in problems[:1]:  # a validator raises one
            key = problem.key.removeprefix("loader.")
            raise fault(f"{problem.message}: set {key}=null", at=["loader", key])
        return self
