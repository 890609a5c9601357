"""The asyncio API. Its calls await the engine, which runs in an event loop of its own."""
