"""One driver per scheduler, each a program of its own that speaks `benchmarks.peers.protocol`."""
