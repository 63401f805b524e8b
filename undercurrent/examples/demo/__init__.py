"""`python -m undercurrent.examples.demo`: a real model, three probes, one stopped generation.

It trains its probes in front of you on the model's own activations, stops a generation with one of them, lets two more
score every token from processes of their own, and measures what that costs the model.
"""
