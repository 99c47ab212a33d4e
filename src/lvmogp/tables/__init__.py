"""Users' data in memory: ids, observations, features of conditions, scaling and transforms."""
