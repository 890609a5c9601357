"""Get messages: find what is visible, claim it, read it, and hand it out."""
