"""The adapter through which the probes of shared/cases see this package: files of fixed-stride records."""

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import torch

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.records import RecordPart, Records

CASES = Path(__file__).parents[3] / "shared" / "cases"


def load_probes():
    """Import shared/cases/probes.py, once, under the name its own scripts use."""
    if "probes" not in sys.modules:
        spec = importlib.util.spec_from_file_location("probes", CASES / "probes.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["probes"] = module
        spec.loader.exec_module(module)
    return sys.modules["probes"]


class Changed:
    """A source of one's own, around another: it applies a function to every record as it is read."""

    def __init__(self, inner, function):
        self.inner, self.function = inner, function
        self.spec, self.delivered, self.thread_safe = inner.spec, inner.delivered, inner.thread_safe
        self.deliver, self.fingerprint = inner.deliver, inner.fingerprint

    def __len__(self):
        return len(self.inner)

    def read_into(self, indices, rows, out):
        self.inner.read_into(indices, rows, out)
        for row in rows.tolist():
            out["record"][row] = self.function(out["record"][row])


def keyed_noise(batch, keys):
    """What the probes' ``noise`` does, with numbers of the keys."""
    record = batch["record"]
    record[:, 8:16] = torch.from_numpy(keys.words(2).astype(np.uint32).view(np.uint8).reshape(-1, 8))
    return batch


class Opened:
    """One loader, as the probes want it."""

    def __init__(self, loader):
        self.loader = loader
        self.set_epoch = loader.set_epoch
        self.state_dict = loader.state_dict
        self.load_state_dict = loader.load_state_dict
        self.close = loader.close

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            yield batch["record"]


class Adapter:
    """Probes' word for it -> ours. A cache on disk is the disk stage, and memory keeps nothing then."""

    def open(
        self,
        path,
        *,
        stride,
        batch_size,
        shuffle=False,
        seed=0,
        drop_last=False,
        num_workers=0,
        persistent=False,
        rank=0,
        world=1,
        evaluate=False,
        augment=None,
        cache_dir=None,
        cache_limit=None,
    ):
        transforms = None
        if augment is load_probes().noise:
            transforms, augment = keyed_noise, None
        source = Records.open(path, record_bytes=stride, parts={"record": RecordPart(0, "uint8", (stride,))})
        if augment is not None:
            source = Changed(source, augment)
        # Training without drop_last on several ranks pads, so that all ranks have steps of one size.
        rule = drop_last or ("pad" if world > 1 and not evaluate else False)
        cache = {}
        if cache_dir is not None:
            os.makedirs(cache_dir, exist_ok=True)
            cache = {
                "mode": "streaming",
                "sample_cache": False,
                "disk_stage": 1 << 20 if cache_limit is None else cache_limit,
                "disk_stage_dir": cache_dir,
            }
        loader = Loader(
            source,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=rule,
            readers=num_workers,
            transforms=transforms,
            context=RunContext(rank, world),
            **cache,
        )
        return Opened(loader)
