"""The torch.distributed backend "paceline"."""
