"""Health checks over connections of their own: TCP connects and HTTP requests."""
