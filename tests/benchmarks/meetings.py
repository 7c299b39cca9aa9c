"""What ranks pay for talking: an exchange of numbers, agreeing on facts, a look at a bulletin; three ranks of a host.

An exchange happens every so many steps where shares follow speeds, a look at each step where skipped samples are told,
agreeing once a run. Milliseconds, the median over the calls of the slowest rank.
"""

import statistics
import sys
import time

from torch import distributed

from flodl_pipe.cluster.agree import agree
from flodl_pipe.cluster.world import World
from tests.cluster.ranks import PATIENT_S, results

FACTS = {f"fact {number}": f"{number}" * 40 for number in range(20)}


def measure(num_calls):
    """Return this rank's median milliseconds of each."""
    world = World.join("one", distributed.get_rank(), PATIENT_S)
    bulletin = world.bulletin("words")
    bulletin.post("a word")
    distributed.barrier()
    calls = {
        "an exchange": lambda: world.gather_floats([1.0, 2.0, 3.0], "a benchmark"),
        "agreeing": lambda: agree(world, FACTS, "in a benchmark"),
        "a look at a bulletin": bulletin.read,
    }
    found = {}
    for name, call in calls.items():
        times = []
        for _ in range(num_calls):
            began = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - began))
        found[name] = statistics.median(times)
        distributed.barrier()
    return found


def main():
    from timing import check, machine

    from tests.benchmarks import meetings  # by the name under which ranks find it

    print(machine())
    ranks = results(meetings.measure, 3, 300)
    met = [check(f"ms: {name}", max(rank[name] for rank in ranks), 5.0, at_least=False) for name in ranks[0]]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
