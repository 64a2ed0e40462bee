"""The protocol of real federations, without any transport: what server and clients keep, send, check and repair.

Server: `server` (one round), `ledger` (its state), `state_backup`, `checks`, `server_checkpoint`.
Client: `client` (one round), `client_state` (its files). Both: `messages`, `run_config`, `agreement`.
"""
