"""The engine: what is kept, how it is read, and how batches reach the training loop."""
