"""A file of one number for each sample: weights, lengths."""

from pathlib import Path

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.errors import SourceError
from flodl_pipe.storage.address import local_path

__all__ = ["read_numbers"]


def read_numbers(path: str, key: str) -> Array:
    """Return the array of an ``.npy`` file, of any shape and dtype that holds numbers; nothing in it is executed.

    Args:
        path: The file.
        key: Key of the config that names it, for messages.

    Raises:
        SourceError: if the file is missing, not of this machine, or no ``.npy`` of numbers.
    """
    try:
        with Path(local_path(path)).open("rb") as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist; correct {key}") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}; correct {key}") from error
    except (ValueError, EOFError) as error:
        raise SourceError(
            f"{path} is no .npy file of numbers: {error}; write it with numpy.save(file, array) and correct {key}"
        ) from None
    return array
