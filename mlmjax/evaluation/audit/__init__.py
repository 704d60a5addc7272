"""What masks really are like: counts over real examples, and tests against chance."""
