"""Readings for other tools: an OpenAI-compatible endpoint and an MCP server, on one engine that stays loaded."""
