"""Everything that reads a run's metrics files: live view, trackers, stop rule, export. Training never waits for it."""
