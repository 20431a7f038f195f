"""Development tools: the helpers of dev.py and the chaos harness."""
