"""What a release is made of, and how it is tried: ``python -m release``, or `make release`.

It publishes nothing. The workflow `.github/workflows/release.yml` does that, from the tag that this prints.
"""
