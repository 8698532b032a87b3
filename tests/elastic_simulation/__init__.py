"""Elastic jobs in a virtual world: the launcher, its driver and the workers run unchanged under a seeded scheduler."""
