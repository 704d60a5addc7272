"""Models in the formats of others: Hugging Face's folders, and programs that run with jax alone."""
