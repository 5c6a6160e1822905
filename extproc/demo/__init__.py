"""The whole thing on one machine: fake provider, process stack, scripted tour."""
