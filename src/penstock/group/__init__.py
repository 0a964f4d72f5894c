"""Stream mode, pure: members, assignment, offsets, cooperative rebalance."""
