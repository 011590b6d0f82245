"""Running probes: the job file, the processes with their limits, the reading made of what they leave."""
