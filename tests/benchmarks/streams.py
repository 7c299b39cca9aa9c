"""Text streams: MB/s of content to windows and to documents; how well shuffling mixes sorted data."""

import gzip
import importlib.util
import json
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np
from timing import machine, median

from flodl_pipe import Loader
from flodl_pipe.sources.text_stream import TextStream

SIZE = 48_000_000
REPEATS = 5
CLASSES, FILES, LINES, WINDOW = 100, 64, 1600, 4


def corpus():
    root = Path(sysconfig.get_path("stdlib"))
    text = b"\n".join(path.read_bytes() for path in sorted(root.glob("*.py")))
    return (text * (SIZE // len(text) + 1))[:SIZE].decode("utf-8", "ignore")


def write(folder):
    text = corpus()
    lines = text.encode()
    documents = [text[at : at + 2000] for at in range(0, len(text), 2000)]
    jsonl = "\n".join(json.dumps({"text": document}) for document in documents).encode()
    files = {
        "lines.txt": lines,
        "crlf.txt": lines.replace(b"\n", b"\r\n"),
        "cjk.txt": ("\u6f22\u5b57\u4eee\u540d" * 20 + "\n").encode() * (SIZE // 241),
        "lines.txt.gz": gzip.compress(lines),
        "docs.jsonl": jsonl,
        "docs.jsonl.gz": gzip.compress(jsonl),
    }
    if importlib.util.find_spec("zstandard"):
        import zstandard

        files["lines.txt.zst"] = zstandard.ZstdCompressor().compress(lines)
        files["docs.jsonl.zst"] = zstandard.ZstdCompressor().compress(jsonl)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return list(files)


def mb_per_s(stream):
    out = stream.spec.empty(64)
    found = []
    for repeat in range(REPEATS):
        reader = stream.open_lane(0, seed=0, epoch=repeat, shuffle=True)
        began, rows = time.perf_counter(), 0
        while count := reader.read_into(out, 0, 64):
            rows += count
        found.append(rows * (stream.spec.fields[0].shape[0] - 1) / (time.perf_counter() - began) / 1e6)
    return median(found)


def documents(folder, length, width):
    """Return MB/s of lines of one length to rows, and rows a second, median, lowest and highest."""
    line = (b"words " * length)[: length - 1] + b"\n"
    (folder / "equal.txt").write_bytes(line * (SIZE // length))
    stream = TextStream.open(str(folder / "equal.txt"), rows="documents", max_length=width)
    out, found = stream.spec.empty(64), []
    for repeat in range(REPEATS):
        reader = stream.open_lane(0, seed=0, epoch=repeat, shuffle=True)
        began, rows = time.perf_counter(), 0
        while count := reader.read_into(out, 0, 64):
            rows += count
        found.append(rows * length / (time.perf_counter() - began) / 1e6)
    return median(found)


def encode(text):
    return [int(text)] * WINDOW


def classes_in_a_batch(folder, *, shuffle=True, **options):
    stream = TextStream.open(str(folder), seq_len=WINDOW, encode=encode, vocab_size=CLASSES, **options)
    with Loader(stream, batch_size=32, shuffle=shuffle, seed=1) as loader:
        return np.mean([len(np.unique(batch["input"].numpy()[:, 0])) for batch in loader])


def write_sorted(folder):
    labels = np.arange(FILES * LINES) * CLASSES // (FILES * LINES)
    for file, part in enumerate(np.split(labels, FILES)):
        (folder / f"{file:02}.txt").write_text("".join(f"{label}\n" for label in part.tolist()))
    rng = np.random.default_rng(0)
    return np.mean([len(np.unique(rng.permutation(labels)[:32])) for _ in range(300)])


def main():
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in write(folder):
            middle, low, high = mb_per_s(TextStream.open(str(folder / file), seq_len=1024))
            print(f"{file:16} {middle:6.0f} M tokens/s ({low:.0f} to {high:.0f})")
        for length, width in ((40, 256), (1000, 2048)):
            middle, low, high = documents(folder, length, width)
            shown = f"{middle:.0f} MB/s ({low:.0f} to {high:.0f}), {middle / length:.2f} M rows/s"
            print(f"documents of {length} bytes in rows of {width}: {shown}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uniform = write_sorted(folder)
        print(f"classes in a batch of 32, {CLASSES} classes sorted over {FILES} files; drawn uniformly: {uniform:.1f}")
        print(f"in order, one lane: {classes_in_a_batch(folder, shuffle=False, lanes=1):.1f}")
        for lanes in (1, 16, 64):
            for buffer in (1024, 8192, 65536):
                mixed = classes_in_a_batch(folder, lanes=lanes, shuffle_buffer=buffer)
                print(f"{lanes} lanes, buffer {buffer}: {mixed:.1f}")


if __name__ == "__main__":
    sys.exit(main())
