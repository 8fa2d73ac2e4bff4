"""What memagent runs on: stores, tables, engines, Ray, the learner."""
