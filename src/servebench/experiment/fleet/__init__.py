"""From measured capacities and a demand to a fleet: replicas, GPUs, cost."""
