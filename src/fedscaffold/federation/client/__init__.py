"""A client's side of the protocol: its policy, its data, its files, and how it answers a request."""
