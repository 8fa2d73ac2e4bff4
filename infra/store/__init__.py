"""The tables of a store, one module each; `schemas` holds their columns."""
