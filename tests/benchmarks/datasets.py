"""What a stranger types first: ``Loader(dataset)`` with its defaults, against torch's DataLoader with 0 and 2 workers.

Batches a second in pass 1, start included, and in pass 3, by when a set that fits is in memory; and how many samples
were read in all of them for one of the set. Workers are kept from pass to pass, with the settings that serve them best.
Rounds are interleaved; the ratio is the median of those of the rounds, of ours to the better of 0 workers and, where
the dataset is thread-safe, 2.

Targets: at least as fast in pass 1, ten times as fast in pass 3, no more than 1.02 samples read for one.
"""

import argparse
import io
import logging
import statistics
import sys
import time
import zlib

import numpy as np
import torch
import torch.utils.data
from timing import check, machine
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from flodl_pipe.loader.loader import Loader

NUMBERS = np.random.default_rng(0)


class Counted(Dataset):
    """Counts what is read of it, in this process."""

    thread_safe = True

    def __init__(self, num_samples):
        self.num_samples, self.num_read = num_samples, 0

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        self.num_read += 1
        return self.sample(index)


class Tuples(Counted):
    """Rows of tensors, and their labels."""

    def __init__(self, num_samples=8192):
        super().__init__(num_samples)
        self.rows, self.labels = torch.rand(num_samples, 32), torch.arange(num_samples)

    def sample(self, index):
        return self.rows[index], self.labels[index]


class Dicts(Tuples):
    """The same as arrays and numbers, by name."""

    def __init__(self):
        super().__init__()
        self.rows = self.rows.numpy()

    def sample(self, index):
        return {"x": self.rows[index], "label": index}


class Pictures(Counted):
    """Pictures as arrays: uint8, 3 x 32 x 32."""

    def __init__(self):
        super().__init__(8192)
        self.pictures = NUMBERS.integers(0, 256, (8192, 3, 32, 32), dtype=np.uint8)

    def sample(self, index):
        return self.pictures[index], index % 10


class Together(Tuples):
    """Many samples from one call."""

    def __getitems__(self, indices):
        self.num_read += len(indices)
        return list(zip(self.rows[indices], self.labels[indices], strict=True))


class Ids(Counted):
    """Text as ids: windows of a long array."""

    def __init__(self):
        super().__init__(8192)
        self.ids = NUMBERS.integers(0, 50_000, 8192 * 128 + 1).astype(np.uint16)

    def sample(self, index):
        window = torch.from_numpy(self.ids[128 * index : 128 * index + 129].astype(np.int64))
        return window[:-1], window[1:]


class Ragged(Counted):
    """Rows of 16 to 64 ids, to be padded."""

    def __init__(self):
        super().__init__(8192)
        self.lengths = NUMBERS.integers(16, 65, 8192)

    def sample(self, index):
        return {"ids": torch.arange(int(self.lengths[index]))}


class Inflated(Counted):
    """Rows of 75 KB that are inflated, some 200 us each with the interpreter let go."""

    def __init__(self):
        super().__init__(2048)
        self.packed = [zlib.compress(NUMBERS.integers(0, 16, 75_000, dtype=np.uint8).tobytes(), 1) for _ in range(256)]

    def sample(self, index):
        return torch.frombuffer(bytearray(zlib.decompress(self.packed[index % 256])), dtype=torch.uint8)


class Slept(Counted):
    """Samples that take 5 ms, as from a network."""

    def __init__(self):
        super().__init__(512)

    def sample(self, index):
        time.sleep(0.005)
        return index


class Jpegs(Counted):
    """JPEG of 160 x 160, decoded by Pillow."""

    def __init__(self):
        from PIL import Image

        super().__init__(1024)
        self.image = Image
        ramp = np.linspace(0, 255, 160, dtype=np.uint8)
        self.files = []
        for number in range(64):
            noise = np.random.default_rng(number).integers(0, 40, (160, 160, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(
                np.minimum(ramp[:, None, None] // 2 + ramp[:, None] // 3 + noise, 255).astype(np.uint8)
            ).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def sample(self, index):
        picture = self.image.open(io.BytesIO(self.files[index % 64])).convert("RGB")
        return torch.from_numpy(np.asarray(picture).copy()), index % 10


def hugging_face():
    """Return a Hugging Face dataset with torch's format."""
    own = sys.path.pop(0)  # this file has the library's name
    try:
        import datasets
    finally:
        sys.path.insert(0, own)
    rows = {"x": NUMBERS.random((8192, 32)).astype(np.float32).tolist(), "label": list(range(8192))}
    return datasets.Dataset.from_dict(rows).with_format("torch")


def part_of_several():
    """Return a subset of two datasets one after the other."""
    both = torch.utils.data.ConcatDataset([Tuples(), Tuples()])
    return torch.utils.data.Subset(both, NUMBERS.permutation(16_384)[:8192].tolist())


def padded(samples):
    """Bring rows of different lengths together, as our own collation does."""
    return {"ids": pad_sequence([sample["ids"] for sample in samples], batch_first=True)}


def kinds():
    """Yield name, dataset, rows of a batch, and what either side needs besides."""
    yield "TensorDataset", torch.utils.data.TensorDataset(torch.rand(8192, 32), torch.arange(8192)), 128, {}, {}
    yield "tuples", Tuples(), 128, {}, {}
    yield "list of (float, int)", [(float(number), number) for number in range(8192)], 128, {}, {}
    yield "dicts", Dicts(), 128, {}, {}
    yield "pictures as NumPy", Pictures(), 128, {}, {}
    yield "tokenised text", Ids(), 64, {}, {}
    yield "__getitems__", Together(), 128, {}, {}
    yield "Subset of ConcatDataset", part_of_several(), 128, {}, {}
    yield "ragged, padded", Ragged(), 64, {"collate_fn": padded}, {"collate": "pad", "pad_multiple": 1}
    yield "inflated, 75 KB", Inflated(), 64, {}, {}
    yield "5 ms of sleep", Slept(), 32, {}, {}
    for name, make in (("JPEG by Pillow", Jpegs), ("Hugging Face, torch", hugging_face)):
        try:
            yield name, make(), 64 if make is Jpegs else 128, {}, {}
        except ImportError as error:
            print(f"{name}: left out, {error}")


def passed(batches, seconds):
    """Return batches a second over at most some time, from the first that is asked for."""
    count, began = 0, time.perf_counter()
    for _ in batches:
        count += 1
        if time.perf_counter() - began > seconds:
            break
    return count / (time.perf_counter() - began)


def ours(dataset, batch_size, options, seconds):
    """Return the rates of pass 1 and pass 3, and samples read for one of the set."""
    if isinstance(dataset, Counted):
        dataset.num_read = 0
    with Loader(dataset, batch_size=batch_size, **options) as loader:
        first = passed(loader, seconds)
        for _ in loader:  # what a pass that was broken off has left
            pass
        third = passed(loader, seconds)
        loaded = loader.is_loaded
    read = dataset.num_read / len(dataset) if isinstance(dataset, Counted) else float("nan")
    return first, third, read, loaded


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("kinds", nargs="*", help="beginnings of names; all without")
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=4.0, help="longest pass that is timed")
    arguments.add_argument("--readers", default="auto")
    options = arguments.parse_args()
    logging.disable(logging.WARNING)  # float64 in a list of numbers
    print(machine())
    readers = options.readers if options.readers == "auto" else int(options.readers)
    failed = False
    for name, dataset, batch_size, of_torch, of_ours in kinds():
        if options.kinds and not any(map(name.startswith, options.kinds)):
            continue
        how = {"batch_size": batch_size, "shuffle": True, "drop_last": True, **of_torch}
        plain, workers = DataLoader(dataset, **how), DataLoader(dataset, num_workers=2, persistent_workers=True, **how)
        passed(workers, options.seconds)  # they are started
        rows = []
        for _ in range(options.repeats):
            peers = passed(plain, options.seconds), passed(workers, options.seconds)
            rows.append((*peers, *ours(dataset, batch_size, {"readers": readers, **of_ours}, options.seconds)))
        del workers
        zero, two, first, third, read = (statistics.median(row[place] for row in rows) for place in range(5))
        against = [row[2] / max(row[:2]) for row in rows]
        later = [row[3] / max(row[:2]) for row in rows]
        print(
            f"{name:24s} DataLoader {zero:8,.0f} / {two:8,.0f}   pass 1 {first:8,.0f}   pass 3 {third:8,.0f}   "
            f"read {read:.3f}   in memory {all(row[5] for row in rows)}"
        )
        failed |= not check(f"{name}: pass 1 / best DataLoader", statistics.median(against), 1.0)
        failed |= not check(f"{name}: pass 3 / best DataLoader", statistics.median(later), 10.0)
    sys.exit(failed)


if __name__ == "__main__":
    main()
