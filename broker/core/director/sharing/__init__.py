"""Directors of several brokers that share their servers, users, contexts and reservations."""
