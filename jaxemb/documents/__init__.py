"""Documents: a vector for each, by PV-DBOW and PV-DM."""
