"""What people are told about a study: its status while it runs, its pages, and what left each site."""
