"""Access control: rules, identities, tokens, accounts and settings."""
