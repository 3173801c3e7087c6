"""What Holdfast makes of failures, each produced for real: real sockets, real processes, a real proxy."""
