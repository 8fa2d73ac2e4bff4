"""Stages: jobs that meet through tables and do not import each other."""
