"""From heartbeats to capacity plans: the journal's records become tables, forecasts, a plan and a report."""
