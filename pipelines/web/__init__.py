"""Servers for people and programs: the review pages."""
