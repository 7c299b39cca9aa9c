"""Randomness as a function of a key: nothing here is advanced, stored or shared."""
