"""The server's side of the protocol: a round, the rules and checks of updates, the ledger, and its files."""
