"""Shares that follow the ranks' speeds against equal ones: three ranks of this host, one of them half as fast.

A row costs 1 ms, asleep, and 2 ms on the slow rank: a step of 96 rows takes 64 ms in equal shares and 39 ms at best.
Medians of the last steps are compared; the target is low, since what ranks exchange, and other programs, take their
part. Shares must settle: noise may cost a change, not many.
"""

import sys

import numpy as np
from timing import check, machine

from tests.cluster.balanced_ranks import EVERY, compare
from tests.cluster.ranks import results


def main():
    print(machine())
    ended = results(compare, 3, (0.001, 0.001, 0.002), 16 * EVERY, True, timeout_s=600)
    equal = np.median([rank[0][1] for rank in ended])
    balanced = np.median(np.array([rank[1][1] for rank in ended])[:, -6 * EVERY :])
    rows = np.array([rank[1][0] for rank in ended])
    late = sum((rows[:, step] != rows[:, step - 1]).any() for step in range(8 * EVERY, rows.shape[1]))
    print(f"\nms a step: {1e3 * equal:.1f} in equal shares, {1e3 * balanced:.1f} in shares that follow speeds")
    print(f"rows of each rank, by windows of {EVERY} steps: {rows[:, ::EVERY].T.tolist()}")
    print("targets")
    met = [
        check("equal / balanced", equal / balanced, 1.12),
        check("rows of the slow rank / rows of the next", rows[2, -1] / rows[:2, -1].min(), 0.75, at_least=False),
        check("changes of shares in the second half", late, 2, at_least=False),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
