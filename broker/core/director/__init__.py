"""The Elko Director without its wire: placement of users into contexts on a farm of Context Servers."""
