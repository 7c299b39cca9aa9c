"""The only part that knows devices: their memory, their streams, and how bytes get there."""
