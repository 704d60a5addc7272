"""Models in the formats of others: Hugging Face's folders, MAE's files, and programs that run with jax alone."""
