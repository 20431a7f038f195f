"""Facets and forwarders behind the methods of `Scheduler`."""
