"""What every room stands on: configs as values, derived randomness, and the shared types."""
