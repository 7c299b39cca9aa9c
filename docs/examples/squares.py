"""The smallest dataset of one's own: numbers and their squares. In a folder with this file::

flodl-pipe +recipe=custom 'allow_import=[squares]'
"""

import numpy as np


class Squares:
    """Sample ``i`` is a number between -1 and 1, and its square."""

    def __init__(self, num_samples: int) -> None:
        self.x = np.linspace(-1.0, 1.0, num_samples, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, np.float32]:
        return {"x": self.x[index], "y": self.x[index] ** 2}


def make_dataset(num_samples: int = 4096) -> Squares:
    """Return the dataset; the recipe's ``source.args`` are the arguments."""
    return Squares(num_samples)
