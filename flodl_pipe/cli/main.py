"""The command line's outermost layer: run, and turn what went wrong into words and an exit status.

====== ==============================================================================
status when
====== ==============================================================================
0      done
1      another program's exception, shown with its traceback
2      an error of ours: config, data, memory, cluster; ``flodl_pipe: ...`` without traceback
130    interrupted
====== ==============================================================================

``HYDRA_FULL_ERROR=1`` shows the traceback of our errors too.
"""

import os
import sys
import time
import traceback
from collections.abc import Sequence

from flodl_pipe.cli.dispatch import run_job
from flodl_pipe.config.arguments import torchrun_rank
from flodl_pipe.config.compose import run_hydra
from flodl_pipe.errors import FlodlPipeError

__all__ = ["main"]

# Longer than torchrun takes to stop the other ranks once one has failed.
_LET_RANK_0_SPEAK_S = 2.0


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program.

    Args:
        argv: Command line without the program's name; None: the process's own.

    Raises:
        SystemExit: with a status other than 0, and after ``--help`` and the like.
    """
    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        run_hydra(list(sys.argv[1:] if argv is None else argv), run_job)
    except FlodlPipeError as error:
        # Every rank meets the same error. The first to exit has torchrun stop the rest, so the others wait for the one
        # that prints; a rank that is still alive then has an error of its own.
        if torchrun_rank() is not None and os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(_LET_RANK_0_SPEAK_S)
        if full:
            traceback.print_exception(error)
        sys.stderr.write(f"flodl_pipe: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("flodl_pipe: interrupted\n")
        raise SystemExit(130) from None
