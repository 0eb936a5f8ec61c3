"""Who may do what: rules, identities, tokens, accounts and settings."""
