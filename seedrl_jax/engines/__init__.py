"""A run's processes on clusters of others: placed, watched, started again."""
