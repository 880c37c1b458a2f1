"""Daily jobs of one service at a time: demand, reliability, balance."""
