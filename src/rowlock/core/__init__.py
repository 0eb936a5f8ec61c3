"""The pure part: no I/O, no clock, no randomness, no await. They come in as arguments."""
