"""A hub as one replica of a fleet: the store clients, and the task that exchanges and applies what peers decide."""
