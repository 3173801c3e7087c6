"""OAuth: log in to a server, keep the tokens, renew them."""
