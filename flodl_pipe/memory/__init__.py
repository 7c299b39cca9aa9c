"""Who may hold how many bytes: probes of the machine, the budget arithmetic, and the ledger of what was granted."""
