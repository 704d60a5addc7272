"""The training loop and what it keeps: it knows no objective, no evaluation and no picture."""
