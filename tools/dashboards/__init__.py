"""Write the Grafana dashboards of the package: ``python -m tools.dashboards``."""
