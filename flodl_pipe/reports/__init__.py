"""What a run shows of itself: progress while it goes, tables of what will happen and of what happened."""
