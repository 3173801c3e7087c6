"""Why will a server not connect: checks that give findings. How findings are shown is the command line's matter."""
