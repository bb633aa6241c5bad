"""The ledger: what happened, as events in chained blocks. The only source of truth; everything else is a projection of it."""
