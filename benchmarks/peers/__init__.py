"""One driver per scheduler, each a separate program that implements `benchmarks.peers.protocol`."""
