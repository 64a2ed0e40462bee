"""Studies over a network: files for the people at the coordinator and at sites, and Flower as the transport."""
