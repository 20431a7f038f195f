"""Keep the lease of this worker: heartbeats, the keeper thread and the watchdog."""
