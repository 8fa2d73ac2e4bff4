"""What make uses: bounds of the house, advisories of pinned packages, uv's settings."""
