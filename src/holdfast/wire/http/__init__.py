"""holdfast.wire.http."""
