"""What runs: stages, flows, the command line."""
