"""PostgreSQL: connections and pools, statements and their files, faults, migrations."""
