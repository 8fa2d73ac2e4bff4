"""Ray: its session, jobs, and the actors that read and sample."""
