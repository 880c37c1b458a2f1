"""This broker as a member of a cluster: its keys in etcd, the mirror of those of the others, and links to them."""
