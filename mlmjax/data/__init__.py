"""From any source of text or images to batches: read, prepare once into fixed rows, read at random."""
