"""The only package that talks to servers: dial one, record evidence, close it. It decides nothing."""
