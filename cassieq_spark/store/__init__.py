"""The one door to Cassandra: sessions, statements, tagged CAS, tables, chunks."""
