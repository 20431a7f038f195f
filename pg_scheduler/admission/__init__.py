"""What holds a due job back: limits, shares, pauses."""
