"""torch's CUDA sanitizer, for all threads.

It follows streams and events of the whole process, but looks at the kernels of one thread only, the one that enabled
it: it is a dispatch mode, and those belong to a thread. A transfer thread's copies would pass unseen. So every thread
that is started gets a mode of its own, which hands what it sees to the one sanitizer.
"""

import os
import threading

from torch.utils._python_dispatch import TorchDispatchMode


def look_at_every_thread():
    """Do so from now on, where TORCH_CUDA_SANITIZER is set: torch has enabled its sanitizer then."""
    if "TORCH_CUDA_SANITIZER" in os.environ:
        from torch.cuda import _sanitizer

        threading.Thread.run = run_under(_sanitizer.cuda_sanitizer.dispatch, threading.Thread.run)


def run_under(sanitizer, run):
    """Return a thread's ``run`` that shows the thread's torch work to a sanitizer."""
    lock = threading.RLock()

    class ThreadsMode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            with lock:  # it keeps its books without one
                return sanitizer.__torch_dispatch__(func, types, args, kwargs)

    def run_seen(thread):
        with ThreadsMode():
            run(thread)

    return run_seen
