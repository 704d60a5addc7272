"""One file a model family: its config, its module, its published sizes."""
