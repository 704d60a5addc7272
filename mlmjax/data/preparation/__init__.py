"""Sources to rows on disk, once: read, clean, choose, tokenise, write."""
