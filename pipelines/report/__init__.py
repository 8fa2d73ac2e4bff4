"""The report of a run, an evaluation or a training: one HTML file that needs no network."""
