"""Events that other nodes see."""
