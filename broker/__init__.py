"""elkobroker: one daemon that lets servers find each other, whatever protocol they speak."""
