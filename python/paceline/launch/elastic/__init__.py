"""Elastic jobs: which workers form the next world after a rank has died or joined."""
