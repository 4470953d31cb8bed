"""Measurements and long checks of the whole product. Nothing of the product imports them."""
