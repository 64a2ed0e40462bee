"""Studies under a privacy budget: sites add noise themselves, and everything else is public or is left out."""
