"""JSON schemas, rewritten into what the grammar engine enforces exactly, or refused by name.

A schema is read as a set of *literals* (a subschema that must hold, or must not). `expansion` turns a set of literals into a union of
*shapes*, each the description of values of one JSON type; children stay sets of literals, so recursion is a graph of
such sets. On shapes, conjunction, negation and emptiness are plain operations; `emission` writes every shape in the
spelling that the engine is known to enforce, or refuses it.
"""
