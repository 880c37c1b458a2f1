"""The client of etcd, over its HTTP gateway."""
