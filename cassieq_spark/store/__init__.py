"""All that talks to Cassandra: sessions, statements, tagged CAS, tables, chunks."""
