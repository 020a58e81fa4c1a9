"""Workers: processes that train by themselves on tables that they share."""
