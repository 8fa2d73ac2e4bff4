"""Keep a store right: verify it, trace what was derived from a text, and erase it."""
