"""``mcp``: the tools by which the assistants of people read, and change what a person has confirmed."""
