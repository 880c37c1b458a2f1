"""DNS: services as SRV, A, AAAA and TXT records, over UDP and TCP."""
