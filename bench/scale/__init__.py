"""What a cluster of up to 1,000 nodes would do: a simulation, checked against what runs here."""
