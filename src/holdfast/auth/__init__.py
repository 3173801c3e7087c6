"""OAuth: who the client is, how a user logs in, where tokens are kept and how they stay fresh."""
