"""The chaos harness: inject faults under load and verify that no guarantee is broken."""
