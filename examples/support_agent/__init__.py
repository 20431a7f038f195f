"""An agent that refunds orders: it survives a kill in the middle of a tool, and waits for an approval."""
