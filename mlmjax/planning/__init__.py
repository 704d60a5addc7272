"""What a training step will need on hardware that is not here, found by compiling it for that hardware."""
