"""Get messages: find visible ones, claim them, read them, and hand them out."""
