"""Attacks, by kind, against a real home: each beside a control that shows that the legitimate action works."""
