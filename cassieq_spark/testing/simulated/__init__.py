"""A simulated Cassandra: nodes, their tables, quorums and Paxos, without a network or a disk."""
