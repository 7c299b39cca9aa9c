"""Which process this is, among how many."""
