"""All code that talks to Cassandra is here: sessions, statements, tagged CAS, tables, chunks."""
