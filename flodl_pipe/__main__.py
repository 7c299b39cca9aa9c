"""``python -m flodl_pipe`` is the console script ``flodl-pipe``."""

from flodl_pipe.cli.main import main

if __name__ == "__main__":
    main()
