"""Which sample stands where: epoch orders, steps, shares and the cursor. Integers in, integers out."""
