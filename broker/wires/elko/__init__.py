"""Elko Broker and Elko Director: JSON over TCP, WebSocket, HTTP and RTCP."""
