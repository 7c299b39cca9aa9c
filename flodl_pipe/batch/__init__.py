"""What a sample looks like (``spec``) and what the training loop receives (``batch``)."""
