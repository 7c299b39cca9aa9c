"""Where samples come from: the source protocol and every bundled source."""
