"""What stays close between epochs: device sample pool, RAM cache, disk stage, and the order in which they are asked."""
