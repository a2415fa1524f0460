"""What `scripts/bench_peers` is made of; not installed."""
