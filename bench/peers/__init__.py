"""What the queue is measured against: each module starts one of them, as its makers ship it."""
