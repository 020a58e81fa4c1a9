"""Interactions of users with items, such as check-ins and purchases."""
