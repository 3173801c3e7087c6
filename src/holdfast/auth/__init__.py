"""OAuth: how a person logs in to a server, where the tokens are kept, and how they are renewed."""
