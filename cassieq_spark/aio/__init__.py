"""The queues from asyncio: the synchronous engine in threads, and long polls that share them."""
