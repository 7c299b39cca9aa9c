"""A program that reads with a loader until it ends, or is ended: ``program_to_end.py MODE END FOLDER``."""

import itertools
import sys
import time
from pathlib import Path

from flodl_pipe.loader.loader import Loader
from tests.loader.device_scenarios import MEMORY, records
from tests.loader.process_sources import Rows
from tests.loader.sources import Numbers

if __name__ == "__main__":
    mode, end, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if end == "import":
        raise ImportError("on purpose")
    options = {"batch_size": 4, "readers": 2, "device": "cpu", "mode": "streaming"}
    source = records(folder)
    if mode == "disk stage":
        options |= {"sample_cache": False, "disk_stage": 64 << 20, "disk_stage_dir": str(folder)}
    elif mode == "processes":
        source = Rows(10_000, busy_us=500)
        options |= {"reader_kind": "process"}
    elif mode == "slow source":
        source = Numbers(100_000, delay_s=0.2)
    elif mode in ("device", "resident"):
        options |= {"device": "simulated", "simulated": MEMORY, "mode": "resident" if mode == "resident" else "auto"}
    loader = Loader(source, **options)
    iterator = iter(loader)
    next(iterator)
    if end == "status":
        for _ in iterator:
            sys.exit(3)
    if end == "error":
        for _ in iterator:
            raise RuntimeError("on purpose")
    if end != "return":
        for number in itertools.count():
            for step, _ in enumerate(loader.epoch(number)):
                if (number, step) == (0, 3):
                    print("at work", flush=True)
                time.sleep(0.001)
