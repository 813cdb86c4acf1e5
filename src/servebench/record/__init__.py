"""What happened: request and chunk columns, the crash-safe journal, the run directory, histograms, live counters."""
