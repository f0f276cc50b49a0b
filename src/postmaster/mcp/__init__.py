"""The tools with which an agent uses its mail over the Model Context Protocol (docs/mcp.md)."""
