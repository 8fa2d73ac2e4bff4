"""Operate a store: one command a file."""
