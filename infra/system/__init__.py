"""The machine a process runs on: processes, confinement, disk, logs, names of files."""
