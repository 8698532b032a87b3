"""Jobs that outlive their ranks: who is in the next world when one has died or another has come."""
