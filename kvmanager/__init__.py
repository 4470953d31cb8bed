"""Which request runs next, and which block holds which token: arithmetic on ids, without model code or clocks."""
