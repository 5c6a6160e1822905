"""What operators look at: metrics."""
