"""From any source of text to batches: read, prepare once into fixed-shape rows, read at random."""
