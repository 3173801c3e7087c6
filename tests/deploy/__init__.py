"""What is deployed: the chart, the compose files and the image."""
