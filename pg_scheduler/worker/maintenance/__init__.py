"""Services that every node runs for all: reclaim, expire, scan, vacuum, plan."""
