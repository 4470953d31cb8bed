"""Which request runs next, and which block holds which token. Arithmetic on ids: no model code, no processes, no clock."""
