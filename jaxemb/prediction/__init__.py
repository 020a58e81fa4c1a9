"""Trained models of clicks: kept, evaluated, and used."""
